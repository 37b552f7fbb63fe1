"""What is in a folder of data: counted from its files, kept in its manifest, shown as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolecast.data.merge import CORPUS
from rolecast.data.records import iter_corpus, iter_questions
from rolecast.errors import InputError
from rolecast.origin import origin
from rolecast.seeding import stream
from rolecast.store.artifact import committed, provenance, writing
from rolecast.types import Question

DATA = "data"  # the kind of the artifact
SHOWN = 12  # rows of a table


@contextmanager
def made_of_data(out: Path, about: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder to write data into, and what its manifest will say beside its card. On an error nothing remains."""
    said: dict[str, Any] = {**about, **origin()}
    with writing(out, DATA, said) as partial:
        yield partial, said
        said["card"] = card(partial)


def card(folder: Path) -> dict[str, Any]:
    """Of each file of questions, and of the corpus."""
    files = sorted(path for path in folder.glob("*.jsonl") if path.name != CORPUS)
    corpus = folder / CORPUS
    found: dict[str, Any] = {"questions": {file.name: questions_card(iter_questions(file)) for file in files}}
    if corpus.exists():
        passages = words = 0
        for passage in iter_corpus(corpus):
            passages, words = passages + 1, words + len(passage.text.split())
        found["corpus"] = {"passages": passages, "words": round(words / passages, 1)}
    if not files and not corpus.exists():
        raise InputError(f"{folder}: holds neither questions nor {CORPUS}; name a folder that `rolecast data convert` wrote")
    return found


def questions_card(questions: Iterable[Question]) -> dict[str, Any]:
    """Counts, by data set, type, hops and level too."""
    n, words = 0, 0
    has: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {name: Counter() for name in ("dataset", "type", "hops", "level")}
    for question in questions:
        n, words = n + 1, words + len(question.text.split())
        gold = question.gold
        has["gold passages"] += bool(gold.passages)
        has["chain"] += bool(gold.chain)
        has["rubric"] += bool(gold.rubric)
        has["several answers"] += len(gold.answers) > 1
        has["unanswerable"] += question.type == "unanswerable"
        by["dataset"][question.dataset or "unnamed"] += 1
        by["type"][question.type or "none"] += 1
        by["hops"][str(question.hops or "unknown")] += 1
        by["level"][question.level or "none"] += 1
    kept = {name: dict(counts.most_common()) for name, counts in by.items() if len(counts) > 1 or name == "dataset"}
    return {"n": n, "words": round(words / n, 1) if n else 0.0, "with": {name: count for name, count in has.items() if count}, "by": kept}


def card_of(place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The card of a folder or a file of questions, and how it was made, where its manifest says."""
    if not place.exists():
        raise InputError(f"{place}: no such file or folder; check the path")
    if place.is_file():
        return {"questions": {place.name: questions_card(iter_questions(place))}}, {}
    said = provenance(place) if committed(place) else {}
    kept = said.pop("card", None)
    return (kept if kept is not None else card(place)), said


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """A card as text."""
    lines = []
    for name, about in found["questions"].items():
        lines.append(f"{name}: {about['n']:,} questions of {about['words']} words")
        lines += counted(about["with"])
        for title, counts in about["by"].items():
            lines += [f"  by {title}", *counted(_shortened(counts), 4)]
    if corpus := found.get("corpus"):
        lines.append(f"{CORPUS}: {corpus['passages']:,} passages of {corpus['words']} words")
    return lines


def made_lines(said: Mapping[str, Any]) -> list[str]:
    """How it was made, a line for each thing that its manifest says."""
    rows = []
    for name, value in said.items():
        if name == "sources" and value and isinstance(value[0], Mapping):
            rows += [
                f"  source   {source['place']}: {source['taken']:,} of {source['had']:,}, weight {source['weight']:g}" for source in value
            ]
        elif value not in (None, "", []):
            rows.append(f"  {name:<8} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return ["made", *rows] if rows else []


def shown(place: Path, n: int, seed: int) -> list[str]:
    """Some questions, drawn by the seed, as paragraphs: memory holds these alone."""
    files = [place] if place.is_file() else sorted(path for path in place.glob("*.jsonl") if path.name != CORPUS)
    if not files:
        raise InputError(f"{place}: no questions; name a file of questions, or a folder with one")
    rng = stream(seed, "show")
    drawn: list[tuple[int, Question]] = []
    for number, question in enumerate(question for file in files for question in iter_questions(file)):  # reservoir sampling
        if len(drawn) < n:
            drawn.append((number, question))
        elif (at := rng.randrange(number + 1)) < n:
            drawn[at] = (number, question)
    return ["\n".join(_question_lines(question)) for _, question in sorted(drawn, key=lambda row: row[0])]


def _question_lines(question: Question) -> list[str]:
    gold = question.gold
    about = {
        "answers": " | ".join(answer if len(answer) < 200 else f"{answer[:200]} …" for answer in gold.answers),
        "type": question.type, "hops": question.hops or "", "level": question.level, "data set": question.dataset,
        "row": question.original_id, "gold": ", ".join(gold.passages),
        "rubric": f"{len(gold.rubric)} items, the first: {gold.rubric[0].text}" if gold.rubric else "", "id": question.id,
    }  # fmt: skip
    return [question.text, *(f"  {name:<8} {value}" for name, value in about.items() if value)]


def _shortened(counts: Mapping[str, int]) -> Mapping[str, int]:
    rows = list(counts.items())
    rest = sum(count for _, count in rows[SHOWN:])
    return dict(rows[:SHOWN]) | ({f"{len(rows) - SHOWN} others": rest} if rest else {})


def counted(counts: Mapping[str, int], indent: int = 2) -> list[str]:
    """A line each, numbers below each other."""
    width = max((len(f"{count:,}") for count in counts.values()), default=0)
    return [f"{'':{indent}}{count:>{width},}  {name}" for name, count in counts.items()]
