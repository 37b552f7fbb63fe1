"""Demonstrations from files: conversations that somebody wrote, and episodes in tokens."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import make_config
from rolecast.errors import InputError
from rolecast.learner.ranks import ALONE
from rolecast.rollout.render import Renderer
from rolecast.stages import sft as sft_stage
from rolecast.stages.run import Run
from rolecast.stages.sft import sft
from rolecast.teachers.demonstrations import read_demonstrations
from rolecast.types import Example

ROLES = ("planner", "answerer")
SAID = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "<answer> Kel</answer>"}]
SCRATCH = {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "feed_forward": 16}


def lines(folder: Path, *rows: Any) -> str:
    file = folder / "d.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_every_reply_of_a_conversation_is_a_row(tmp_path: Path, renderer: Renderer) -> None:
    more = [*SAID, {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "<answer> Dax</answer>"}]
    one, two, three = read_demonstrations(
        lines(tmp_path, {"role": "planner", "messages": SAID}, {"role": "answerer", "messages": more}), renderer, ROLES, 512
    )
    assert [row.tag for row in (one, two, three)] == ["planner", "answerer", "answerer"]
    prompt, _ = renderer.prompt(SAID[:1])
    assert one.ids[: len(prompt)] == prompt
    assert one.trained == (False,) * len(prompt) + (True,) * (len(one.ids) - len(prompt))
    learned = [renderer.decode([id for id, flag in zip(row.ids, row.trained, strict=True) if flag]) for row in (one, two, three)]
    assert learned == ["<answer> Kel</answer>", "<answer> Kel</answer>", "<answer> Dax</answer>"]
    assert "Kel" in renderer.decode([id for id, flag in zip(three.ids, three.trained, strict=True) if not flag]), "earlier replies are read"


def test_an_episode_is_learned_as_it_was_played(tmp_path: Path, renderer: Renderer) -> None:
    row = {"renderer": renderer.fingerprint(), "threads": [{"role": "planner", "ids": [5, 6, 7], "trained": [0, 1, 1]}], "score": 1.0}
    assert read_demonstrations(lines(tmp_path, row), renderer, ROLES, 512) == [Example((5, 6, 7), (False, True, True), tag="planner")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"role": "judge", "messages": SAID}, "role 'judge' is none of the method's, which are planner, answerer"),
        ({"role": "planner", "messages": SAID[:1] * 2}, "no assistant's message with something before it"),
        ({"role": "planner", "messages": SAID[::-1]}, "no assistant's message with something before it"),
        ({"role": "planner", "messages": [SAID[0], {"role": "assistant", "content": ""}]}, "message 2 says nothing"),
        ({"role": "planner", "messages": [{"role": "tool", "content": "x"}, SAID[1]]}, "'messages.0.role'"),
        ({"role": "planner"}, "key 'messages' is missing"),
        ({"role": "planner", "messages": SAID, "weight": 2}, "unknown key 'weight'"),
        ({"renderer": "other", "threads": [{"role": "planner", "ids": [1], "trained": [1]}]}, "another tokenizer or chat template"),
        ({"renderer": "", "threads": [{"role": "planner", "ids": [1, 2], "trained": [1]}]}, "has 2 tokens and 1 marks"),
        ({"renderer": "", "threads": [{"role": "planner", "ids": [1, 2], "trained": [0, 0]}]}, "has 2 tokens and 2 marks, 0 of them set"),
    ],
)
def test_faults(tmp_path: Path, renderer: Renderer, row: dict[str, Any], reason: str) -> None:
    row = {**row, "renderer": row["renderer"] or renderer.fingerprint()} if "renderer" in row else row
    file = lines(tmp_path, {"role": "planner", "messages": SAID}, row)
    with pytest.raises(InputError) as caught:
        read_demonstrations(file, renderer, ROLES, 512)
    assert f"{file}, line 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_a_place_without_demonstrations_is_named(tmp_path: Path, renderer: Renderer) -> None:
    for place in (tmp_path, tmp_path / "gone"):
        with pytest.raises(InputError, match="no demonstrations; name a file of conversations, or a folder"):
            read_demonstrations(str(place), renderer, ROLES, 512)


def test_rows_that_do_not_fit_are_left_out_and_counted(tmp_path: Path, renderer: Renderer, caplog: pytest.LogCaptureFixture) -> None:
    long = [SAID[0], {"role": "assistant", "content": "Kel " * 600}]
    file = lines(tmp_path, {"role": "planner", "messages": SAID}, {"role": "planner", "messages": long})
    with caplog.at_level(logging.WARNING):
        assert len(read_demonstrations(file, renderer, ROLES, 512)) == 1
    assert "1 turns are longer than model.max_context (512)" in caplog.text
    with pytest.raises(InputError, match="no turn to learn from"):
        read_demonstrations(lines(tmp_path, {"role": "planner", "messages": long}), renderer, ROLES, 512)


def run_of(folder: Path, demonstrations: str, **settings: Any) -> Run:
    stages = {"sft": {"steps": 2, "batch": 2, "demonstrations": demonstrations, **settings}}
    return Run(folder / "run", make_config({"model": {"scratch": SCRATCH}, "stages": stages}, "here"))


def test_a_stage_learns_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, lines(tmp_path, {"role": "planner", "messages": SAID}))
    learned: list[Example] = []
    monkeypatch.setattr(sft_stage, "_update", lambda learner, method, rows: learned.extend(rows) or {})
    sft(run, run.config.schedule[0], ALONE)
    assert len(learned) == 4
    assert len({row.ids for row in learned}) == 1, "nothing of a scripted teacher"
    assert run.has(run.model("sft"))


def test_other_demonstrations_than_a_stage_began_with_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = lines(tmp_path, {"role": "planner", "messages": SAID})
    run = run_of(tmp_path, file)
    monkeypatch.setattr(sft_stage, "_update", lambda learner, method, rows: {})
    monkeypatch.setattr(sft_stage, "_finish", lambda run, stage, learner, folder: None)
    sft(run, run.config.schedule[0], ALONE)
    lines(tmp_path, {"role": "answerer", "messages": SAID})
    with pytest.raises(InputError, match="holds other demonstrations than when stage sft began"):
        sft(run, run.config.schedule[0], ALONE)


def test_demonstrations_of_nobody_who_is_trained(tmp_path: Path) -> None:
    run = run_of(tmp_path, lines(tmp_path, {"role": "condenser", "messages": SAID}))
    with pytest.raises(InputError, match="no turn of a role that stage sft trains"):
        sft(run, run.config.schedule[0], ALONE)


def test_no_sft_at_all_is_a_stage_without_steps() -> None:
    assert make_config({"stages": {"sft": None}}, "here").sft("sft").steps == 0
    assert make_config({}, "here").sft("sft").steps > 0
