"""An episode as text for a terminal: what was searched, found and kept on the way, and the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rolecast.tags import left_open
from rolecast.types import Action, Passage, Thread, Trajectory

SAID = {
    "think": "thinks",
    "search": "searches",
    "filter": "keeps",
    "refine": "keeps",
    "task": "asks for",
    "facts": "condenses",
    "answer": "answers",
    "evidence": "keeps",
    "Update": "replaces",
    "Add": "adds",
    "end": "ends",
    "predicted_answer": "answers",
}
DOCUMENTS = "documents"
WIDTH = 11  # of the left column
Mark = Callable[[str], str]


def conversation(episode: Trajectory, mark: Mark = str) -> str:
    """What every role was given to read and what it said, turn by turn, and the answer last. `mark` sets off the left column."""
    lines = [line for thread in episode.threads for line in _thread(thread, episode, mark)]
    return "\n".join([*lines, f"{mark('answer:'.ljust(WIDTH))}{episode.answer or no_answer(episode)}"])


def no_answer(episode: Trajectory) -> str:
    """Why there is none."""
    reason = "the last reply holds none" if episode.status == "ok" else f"the episode ended as {episode.status}"
    return f"(no answer: {reason})"


def _thread(thread: Thread, episode: Trajectory, mark: Mark) -> Iterator[str]:
    for number, turn in enumerate(thread.turns):
        if isinstance(turn, Action):
            opening = left_open(thread.turns[0].text) if number == 1 else ""
            yield from _action(f"{thread.role}:", opening + turn.text, turn.valid, mark)
        elif number:
            found = DOCUMENTS in turn.sources
            yield from _indented(_found_mark(mark) if found else " " * WIDTH, re.sub(r"</?\w+>", "", turn.text) if found else turn.text)
        elif DOCUMENTS in turn.sources:  # of the prompt, the rest repeats what the lines above say
            yield from _found(thread, episode, mark)


def _found(thread: Thread, episode: Trajectory, mark: Mark) -> Iterator[str]:
    first = next((turn.id for turn in thread.actions), "")
    documents: Sequence[Passage | str] = getattr(episode.states.get(first), DOCUMENTS, [])  # a method may keep their texts alone
    for number, document in enumerate(documents):
        yield from _indented(" " * WIDTH if number else _found_mark(mark), document if isinstance(document, str) else _titled(document))


def _titled(passage: Passage) -> str:
    return f"{passage.title}: {passage.text}" if passage.title else passage.text


def _found_mark(mark: Mark) -> str:
    return mark("found:".ljust(WIDTH))


def _action(role: str, text: str, valid: bool, mark: Mark) -> Iterator[str]:
    """A line for each block of a reply; a reply that broke its form as it is."""
    blocks = re.findall(r"<(\w+)>(.*?)(?:</\1>|\Z)", text, re.DOTALL) if valid else []
    if not blocks:
        yield from _indented(mark(role.ljust(WIDTH)), f"{text.strip()}{'' if valid else '  (not in its form)'}")
    for tag, content in blocks:
        said = " ".join(content.split()) or ("nothing" if f"</{tag}>" in text else "")
        yield from _indented(mark(role.ljust(WIDTH)), f"{SAID.get(tag, tag)} {said}".rstrip())


def _indented(left: str, text: str) -> Iterator[str]:
    first, *rest = text.strip().splitlines() or [""]
    yield f"{left}{first}"
    yield from (" " * WIDTH + line.strip() for line in rest)
