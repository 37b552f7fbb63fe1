"""Several converted folders to one corpus, and the questions of each over it: splits and data sets share passages and bring them separately."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rolecast.data.jsonl import JsonlWriter, fault
from rolecast.data.records import iter_corpus, passage_row, question_row, read_questions
from rolecast.errors import InputError
from rolecast.types import Passage, Question

CORPUS = "corpus.jsonl"


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge wrote. `questions`: by file; `shared`: passages that were there before, under the same id or another."""

    passages: int
    shared: int
    questions: Mapping[str, int]


def merge(folders: Sequence[Path], out: Path) -> Merged:
    """Writes `corpus.jsonl` with each passage once, and the question files of every folder: `questions.jsonl` as FOLDER.jsonl, others under
    their own names. Memory holds ids and digests, not texts.

    `InputError`: two folders have one file name, or one id stands for two passages or two questions; a gold passage that no corpus has.
    """
    files = list(_question_files(folders))
    corpora = [folder / CORPUS for folder in folders if (folder / CORPUS).exists()]
    if not corpora:
        raise InputError(f"{folders[0]} has no {CORPUS}, nor has another of the folders; give one that brings passages")
    merged = Passages()
    with JsonlWriter(out / CORPUS) as corpus:
        for file in corpora:
            for passage in iter_corpus(file):
                if merged.add(passage, file):
                    corpus.write(passage_row(passage))
    asked: dict[str, Path] = {}
    counts: dict[str, int] = {}
    for name, file in files:
        with JsonlWriter(out / name) as questions:
            for question in read_questions(file):
                if question.id in asked:
                    raise fault(
                        file,
                        f"question {question.id!r} is in {asked[question.id]} too; convert them with names of their own (--dataset, --split)",
                    )
                asked[question.id] = file
                questions.write(question_row(merged.over(question, file)))
        counts[name] = questions.rows
    return Merged(corpus.rows, merged.shared, counts)


def _question_files(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The name in the merged folder, and the file."""
    taken: dict[str, Path] = {}
    for folder in folders:
        found = sorted(path for path in folder.glob("*.jsonl") if path.name != CORPUS)
        if not found and not (folder / CORPUS).exists():
            raise InputError(f"{folder}: holds neither questions nor {CORPUS}; name a folder that `rolecast data convert` wrote")
        for file in found:
            name = f"{folder.resolve().name}.jsonl" if file.name == "questions.jsonl" else file.name
            if name in taken or name == CORPUS:
                raise InputError(f"{file} and {taken.get(name, CORPUS)} would both become {name}; rename a folder")
            taken[name] = file
            yield name, file


class Passages:
    """Which passages are there. Equal title and text are one passage, which keeps the first id."""

    def __init__(self) -> None:
        self.shared = 0
        self._digests: dict[str, bytes] = {}  # of what an id stands for
        self._kept: dict[bytes, str] = {}
        self._renamed: dict[str, str] = {}

    def add(self, passage: Passage, file: Path) -> bool:
        """Whether it is new."""
        digest = hashlib.blake2b(f"{passage.title}\0{passage.text}".encode(), digest_size=16).digest()
        known = self._digests.get(passage.id)
        if known is not None and known != digest:
            raise fault(
                file, f"passage {passage.id!r} has another text here than before; give the passages of one of the corpora ids of their own"
            )
        self._digests[passage.id] = digest
        kept = self._kept.setdefault(digest, passage.id)
        if kept != passage.id:
            self._renamed[passage.id] = kept
        self.shared += (again := known is not None or kept != passage.id)
        return not again

    def over(self, question: Question, file: Path) -> Question:
        """The question with the ids that were kept, each once."""
        gold = question.gold
        if lost := [id for id in gold.passages if id not in self._digests]:
            raise fault(
                file, f"gold passage {lost[0]!r} of question {question.id!r} is in none of the corpora; merge the folder that has it too"
            )
        passages = tuple(dict.fromkeys(self._renamed.get(id, id) for id in gold.passages))
        chain = tuple(replace(hop, passage=self._renamed.get(hop.passage, hop.passage)) for hop in gold.chain)
        return replace(question, gold=replace(gold, passages=passages, chain=chain))
