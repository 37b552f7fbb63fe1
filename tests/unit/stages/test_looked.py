"""Which episodes a stage keeps token by token, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rolecast.evaluation.tasks import QA
from rolecast.learner.look import TokenNumbers
from rolecast.stages import looked
from rolecast.types import Action, Gold, Question, Thread, Trajectory, Unit

QUESTION = Question("q", "Which band is it?", Gold(("The The",)))


def episode(group: str, member: int, tokens: int = 3) -> Trajectory:
    action = Action(f"{group}.{member}#0", tuple(range(tokens)), (0.0,) * tokens, "v", "abc", "stop")
    thread = Thread(f"{group}.{member}/t", "planner", "shared", turns=[action])
    return Trajectory(f"{group}.{member}", QUESTION, group, member, "decor", 0, threads=[thread], answer="The The")


def units(*rewards: tuple[str, float]) -> list[Unit]:
    """One unit for each (episode, reward), compared within its group."""
    return [Unit(f"u{id}", (f"{id}#0",), reward, "o", baseline=id.partition(".")[0]) for id, reward in rewards]


def test_a_question_whose_rewards_differ_is_looked_at() -> None:
    played = [episode("g", 0), episode("g", 1), episode("h", 0), episode("h", 1), episode("h", 2), episode("i", 0), episode("i", 1)]
    rewards = units(("g.0", 1.0), ("g.1", 1.0), ("h.0", 0.0), ("h.1", 1.0), ("h.2", 1.0), ("i.0", 0.0), ("i.1", 1.0))
    assert [t.id for t in looked.chosen(played, rewards, 2)] == ["h.1", "h.0"]  # the best, the worst
    assert [t.id for t in looked.chosen(played, rewards, 9)] == ["h.1", "h.0", "h.2"]
    assert looked.chosen(played, rewards, 0) == []
    assert looked.chosen(played, rewards[:2], 2) == []


def test_no_more_tokens_are_looked_at_than_are_kept() -> None:
    played = [episode("g", 0, 4000), episode("g", 1, 96), episode("g", 2, 1)]
    rewards = units(("g.0", 1.0), ("g.1", 0.0), ("g.2", 0.0))
    assert [t.id for t in looked.chosen(played, rewards, 3)] == ["g.0", "g.2"]  # 4,001 tokens, and 96 more are too many


def letters(ids: Sequence[int]) -> str:
    return "".join("abc"[id] for id in ids)


def keep(folder: Path, step: int) -> None:
    numbers = TokenNumbers((0.5, 0.5, 0.5), (1.0, 1.23456, 0.9), (0.1, 0.2, 0.3))
    looked.keep(folder, step, [episode("g", 0)], {"g.0#0": numbers}, letters, QA)


def test_a_trace_has_texts_and_numbers_of_its_tokens(tmp_path: Path) -> None:
    keep(tmp_path, 3)
    [trace] = looked.read_looked(tmp_path)
    assert (trace["step"], trace["score"]) == (3, 1.0)
    assert trace["threads"][0]["turns"][0]["of_tokens"] == {
        "pieces": ["a", "b", "c"], "advantage": [0.5, 0.5, 0.5], "ratio": [1.0, 1.2346, 0.9], "entropy": [0.1, 0.2, 0.3],
    }  # fmt: skip


def test_the_first_step_and_the_newest_are_kept_and_steps_that_are_taken_again_replaced(tmp_path: Path) -> None:
    for step in range(1, 31):
        keep(tmp_path, step)
    assert [trace["step"] for trace in looked.read_looked(tmp_path)] == [1, *range(16, 31)]
    keep(tmp_path, 20)
    assert [trace["step"] for trace in looked.read_looked(tmp_path)] == [1, *range(16, 21)]


def test_nothing_is_written_of_a_step_that_told_nothing(tmp_path: Path) -> None:
    looked.keep(tmp_path / "rl", 1, [episode("g", 0)], {}, letters, QA)
    assert not (tmp_path / "rl").exists()
    assert looked.read_looked(tmp_path / "rl") == []


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        ([b"na", b"\xc3", b"\xaf", b"ve"], ["na", "", "ï", "ve"]),
        ([b"a", b"\xe2", b"\x82"], ["a", "", "\ufffd"]),  # ends inside of a character
        ([], []),
    ],
)
def test_bytes_of_one_character_come_with_its_last_token(tokens: list[bytes], pieces: list[str]) -> None:
    decode = lambda ids: b"".join(tokens[id] for id in ids).decode(errors="replace")  # noqa: E731
    assert looked.pieces_of(range(len(tokens)), decode) == pieces


def test_a_space_that_is_written_behind_another_token_alone_is_kept() -> None:
    words = ["who", "is", "it"]
    assert looked.pieces_of(range(3), lambda ids: " ".join(words[id] for id in ids)) == ["who", " is", " it"]
