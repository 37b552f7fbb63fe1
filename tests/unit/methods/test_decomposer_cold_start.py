"""DecomposeR's cold start (3.4.1): an endpoint plays every role on the run's own questions, and SFT learns what could be read of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import load_config
from rolecast.data.records import read_questions
from rolecast.methods.registry import find
from rolecast.retriever import encoder
from rolecast.stages.inputs import inputs
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run, prepare
from rolecast.stages.train import train
from rolecast.store.artifact import provenance
from tests.endpoint import KEY, Endpoint, answering
from tests.unit.methods.test_decomposer_run import SMALL, Words

GRAPH = "search mentor of Ann Bo; join 1; answer 2"


def speak(body: dict[str, Any]) -> str:
    """What another model would say in the compact form; to questions about two things its planner says what is no graph."""
    text = body["messages"][-1]["content"]
    role = re.match(r"\s*(\w+)", text)
    assert role is not None
    match role[1]:
        case "planner":
            return "I would rather not." if " and " in text else f"<graph>{GRAPH}</graph>"
        case "reviser":
            return f"<graph>{GRAPH}</graph><fetch></fetch>" if GRAPH in text else "<graph></graph><fetch></fetch>"
        case "answerer":
            return "<nodes><node id=2>Nobody knows.[1]</node></nodes>"
        case "writer":
            return "<node id=3>Nobody knows.[1]</node><answer>nobody</answer>"
    raise AssertionError(text)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Endpoint]]:
    with pytest.MonkeyPatch.context() as patch, answering() as (url, endpoint):
        patch.setattr(encoder, "Encoder", Words)
        patch.setenv("BIG_KEY", KEY)
        endpoint.replies = [speak]
        own = [
            "method.cold_start=big", f"externals={{big: {{url: '{url}', model: big-1, key_env: BIG_KEY}}}}",
            "stages.teacher={questions: 12, dev: 8, samples: 1}", "stages.sft.steps=31", "stages.sft.batch=12", "stages.sft.drills=0",
            "stages.sft.mix={}",
        ]  # fmt: skip
        config = load_config(Path(str(find("decomposer").preset())), [*SMALL, *own])
        run = prepare(str(tmp_path_factory.mktemp("cold") / "run"), config, inputs)
        train(run, "teacher")
        train(run, "sft")
        yield run, endpoint


def test_the_endpoint_plays_every_role_with_its_key(taught: tuple[Run, Endpoint]) -> None:
    _, endpoint = taught
    asked = Counter(body["messages"][-1]["content"].split()[0] for body in endpoint.bodies)
    assert set(asked) == {"planner", "reviser", "answerer", "writer"}
    assert {headers["authorization"] for headers in endpoint.headers} == {f"Bearer {KEY}"}
    assert {body["model"] for body in endpoint.bodies} == {"big-1"}


def test_only_episodes_in_which_all_could_be_read_are_kept(taught: tuple[Run, Endpoint]) -> None:
    run, endpoint = taught
    kept = read_questions(run.questions("teacher") / "train.jsonl")
    played = sum(body["messages"][-1]["content"].split()[0] == "planner" for body in endpoint.bodies)
    assert played == 20  # of train and dev
    assert 0 < len(kept) < 12
    assert all(" and " not in question.text for question in kept)
    counts = provenance(run.questions("teacher"))["counts"]["train"]
    assert (counts["asked"], counts["prepared"]) == (12, len(kept))


def test_sft_learns_the_endpoints_turns_and_nothing_else(taught: tuple[Run, Endpoint]) -> None:
    run, _ = taught
    rows = read_metrics(run.stage("sft"))
    told = {name.partition("/")[0] for row in rows for name in row if name.endswith("/nll")}
    kept = read_questions(run.questions("teacher") / "train.jsonl")
    assert told <= {turn["role"] for question in kept for turn in question.given["turns"]} == {"planner", "reviser", "answerer", "writer"}
    assert rows[-1]["nll"] < 2  # few texts, said over and over: .98 here, where the scripted teacher's many leave 2.9


def test_no_key_is_written_down(taught: tuple[Run, Endpoint]) -> None:
    run, _ = taught
    assert not [path for path in run.path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
