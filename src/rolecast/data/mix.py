"""A mixture: questions of several converted folders in given shares, each once, none that an evaluation set has, over one corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import floor
from pathlib import Path

from rolecast.data.duplicates import NEAR, Seen, common
from rolecast.data.jsonl import JsonlWriter, fault
from rolecast.data.merge import CORPUS, Passages
from rolecast.data.records import iter_corpus, passage_row, question_row, read_questions
from rolecast.errors import InputError
from rolecast.seeding import stream
from rolecast.types import Question


@dataclass(frozen=True, slots=True)
class Source:
    """A folder, or a file of questions, and its weight: its share of the mixture before it is divided by the sum."""

    place: Path
    weight: float = 1.0

    @classmethod
    def read(cls, text: str) -> Source:
        """PLACE or PLACE=WEIGHT."""
        place, equals, weight = text.rpartition("=")
        if not equals or Path(text).exists():
            return cls(Path(text))
        try:
            share = float(weight)
        except ValueError:
            raise InputError(f"{text!r}: the weight {weight!r} is no number; write FOLDER=2, or FOLDER alone") from None
        if not 0 < share < float("inf"):
            raise InputError(f"{text!r}: a weight is above 0; leave the folder out instead")
        return cls(Path(place), share)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of a source: `had` questions, those left out by why, and `taken`."""

    place: str
    weight: float
    had: int
    exact: int
    near: int
    evaluated: int
    taken: int


@dataclass(frozen=True, slots=True)
class Mixed:
    questions: int
    passages: int
    shared: int
    sources: Sequence[Drawn]


def mix(sources: Sequence[Source], out: Path, size: int | None, seed: int, against: Sequence[Path] = (), near: float = NEAR) -> Mixed:
    """Writes `questions.jsonl` and, where a source has one, `corpus.jsonl`, into `out`. `size`: by default as many as the shares allow, or
    everything where all weights are 1. A function of its arguments and the files.

    `InputError`: two sources have one id; no question is left; the shares do not allow the size.
    """
    read = [read_questions(_questions_at(source.place)) for source in sources]
    _require_own_ids(sources, read)
    evaluated = [question for place in against for file in _evaluation_files(place) for question in read_questions(file)]
    kept, dropped = _once(read, evaluated, near)
    quotas = _quotas(sources, [len(rows) for rows in kept], size)
    taken = [stream(seed, "mix", number).sample(rows, quota) for number, (rows, quota) in enumerate(zip(kept, quotas, strict=True))]
    mixed = list(chain.from_iterable(taken))
    stream(seed, "mix", "order").shuffle(mixed)
    passages = Passages()
    with JsonlWriter(out / "questions.jsonl") as questions, JsonlWriter(out / CORPUS) as corpus:
        for file in (source.place / CORPUS for source in sources if (source.place / CORPUS).exists()):
            for passage in iter_corpus(file):
                if passages.add(passage, file):
                    corpus.write(passage_row(passage))
        for question in mixed:
            questions.write(question_row(passages.over(question, out) if corpus.rows else question))
    told = [
        Drawn(str(source.place), source.weight, len(rows), lost["exact"], lost["near"], lost["evaluated"], quota)
        for source, rows, lost, quota in zip(sources, read, dropped, quotas, strict=True)
    ]
    return Mixed(len(mixed), corpus.rows, passages.shared, told)


def _questions_at(place: Path) -> Path:
    if place.is_file():
        return place
    found = sorted(path for path in place.glob("*.jsonl") if path.name != CORPUS)
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"{place}: no file of questions; name a folder that `rolecast data convert` wrote, or a file")
    raise InputError(f"{place}: holds {', '.join(path.name for path in found)}; name one of these files")


def _evaluation_files(place: Path) -> Sequence[Path]:
    """Every file of questions: all of them are held out."""
    if place.is_file():
        return [place]
    found = sorted(path for path in place.glob("*.jsonl") if path.name != CORPUS)
    if not found:
        raise InputError(f"{place}: no file of questions to hold out; check the path")
    return found


def _require_own_ids(sources: Sequence[Source], read: Sequence[Sequence[Question]]) -> None:
    known: dict[str, Path] = {}
    for source, rows in zip(sources, read, strict=True):
        for question in rows:
            if (other := known.setdefault(question.id, source.place)) != source.place:
                raise fault(
                    source.place, f"question {question.id!r} is in {other} too; convert them with names of their own (--dataset, --split)"
                )


def _once(
    read: Sequence[Sequence[Question]], evaluated: Sequence[Question], near: float
) -> tuple[list[list[Question]], list[Counter[str]]]:
    """What is left of each source, and how many were left out by why. Of two that ask the same the first source's stays."""
    counts = common(chain(evaluated, *read))
    held, seen = Seen(near, counts), Seen(near, counts)
    ids = {question.id for question in evaluated}
    for question in evaluated:
        held.add(question)
    kept: list[list[Question]] = []
    dropped: list[Counter[str]] = []
    for rows in read:
        own, lost = list[Question](), Counter[str]()
        for question in rows:
            if question.id in ids or held.repeats(question) is not None:
                lost["evaluated"] += 1
            elif (found := seen.repeats(question)) is not None:
                lost[found[0]] += 1
            else:
                seen.add(question)
                own.append(question)
        kept.append(own)
        dropped.append(lost)
    return kept, dropped


def _quotas(sources: Sequence[Source], have: Sequence[int], size: int | None) -> list[int]:
    """How many of each: by largest remainders of the shares."""
    if empty := [source.place for source, count in zip(sources, have, strict=True) if not count]:
        raise InputError(f"{empty[0]}: no question is left of it once repeated and held-out ones are gone; leave it out")
    if size is None and len({source.weight for source in sources}) == 1:
        return list(have)
    total = sum(source.weight for source in sources)
    shares = [source.weight / total for source in sources]
    most = floor(min(count / share for count, share in zip(have, shares, strict=True)) + 1e-9)
    if size is not None and size > most:
        tight = min(zip(sources, have, shares, strict=True), key=lambda row: row[1] / row[2])
        raise InputError(
            f"a mixture of {size} wants {size * tight[2]:.0f} questions of {tight[0].place}, which has {tight[1]}; these weights allow {most}"
        )
    wanted = [(size or most) * share for share in shares]
    quotas = [floor(want + 1e-9) for want in wanted]
    for at in sorted(range(len(wanted)), key=lambda at: (quotas[at] - wanted[at], at))[: (size or most) - sum(quotas)]:
        quotas[at] += 1
    return [min(quota, count) for quota, count in zip(quotas, have, strict=True)]


def about(mixed: Mixed, size: int | None, seed: int, against: Sequence[Path], near: float) -> Mapping[str, object]:
    """What the manifest says of a mixture."""
    return {
        "made": "mix", "size": size, "seed": seed, "near": near, "against": [str(place) for place in against],
        "sources": [asdict(source) for source in mixed.sources],
    }  # fmt: skip
