"""A run in which an endpoint answers in the place of a role: it plays along in RL and in evaluation, and nothing of it is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.coordinator.checks import faults
from rolecast.learner.batch import make_batch
from rolecast.leasing import Group, Lease, TeamVersion
from rolecast.methods.registry import make_method
from rolecast.ports import Sampling
from rolecast.rollout.render import Renderer
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.publish import rules
from rolecast.stages.run import Run, create
from rolecast.stages.sampling import own_credit
from rolecast.stages.sft import draw_block
from rolecast.stages.train import train
from rolecast.types import Action, Observation, Thread, Trajectory, Unit
from rolecast.wire.coordinator import pack, unpack
from tests.endpoint import Endpoint, answering
from tests.tiny import RENDERER, TOKENIZER, tiny_team

TINY: dict[str, Any] = {
    "name": "tiny", "threads": 1,
    "method": {"name": "decor", "prompts": "compact", "condenser": "extractive", "k": 2, "max_turns": 2, "max_tokens": 24, "alpha": 0.4},
    "model": {"max_context": 256, "scratch": {"hidden": 48, "layers": 2, "heads": 2, "head_dim": 32, "feed_forward": 96}},
    "data": {"world": {"entities": {"train": 150, "dev": 60, "test": 90}, "questions": {"train": 40, "dev": 4, "test": 6}}},
    "stages": {
        "sft": {"steps": 150, "batch": 8, "lr": 1e-2},
        "rl": {"steps": 2, "questions": 4, "group": 3, "dev": 4, "eval_every": 2, "refill": 2, "record": True},
    },
    "cast": {"answerer": "external:far"}, "eval": {"n": 6, "bootstrap": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def far() -> Iterator[tuple[str, Endpoint]]:
    with answering() as (url, endpoint):
        endpoint.replies = ["<think> of it</think><answer> yes</answer> and so on"]
        yield url, endpoint


def config(url: str, **keys: Any) -> RunConfig:
    return make_config({**TINY, "externals": {"far": {"url": url, "model": "m"}}, **keys}, "here")


def test_sft_leaves_the_role_out(far: tuple[str, Endpoint]) -> None:
    c = config(far[0])
    [stage, _] = c.schedule
    method = c.method_in(stage)
    block = draw_block(c, stage, method, Renderer(TOKENIZER, method.tags), 0)
    assert {row.tag for batch in block for row in batch} == {"planner", "filter"}
    whole = draw_block(config(far[0], cast={}), stage, make_method(c.method), Renderer(TOKENIZER, method.tags), 0)
    assert {row.tag for batch in whole for row in batch} == {"planner", "filter", "answerer"}


@pytest.fixture(scope="module")
def run(far: tuple[str, Endpoint], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained through both stages. `far` counts what it was asked."""
    made = create(tmp_path_factory.mktemp("cast") / "run", config(far[0]))
    inputs(made)
    train(made, "sft")
    train(made, "rl")
    return made


def recorded(run: Run) -> list[Trajectory]:
    shards = run.artifacts(run.stage("rl") / "trajectories")
    return [t for shard in shards for t in unpack((shard / "trajectories.json.gz").read_bytes())]


def test_it_plays_along_in_rl_and_nothing_of_it_is_trained_or_counted(run: Run, far: tuple[str, Endpoint]) -> None:
    episodes = recorded(run)
    theirs = [thread for t in episodes for thread in t.threads if thread.slot == "external:far"]
    assert theirs
    assert {thread.role for thread in theirs} == {"answerer"}
    for thread in theirs:
        [action] = thread.actions
        assert (action.text, action.logprobs) == ("<think> of it</think><answer> yes</answer>", ())
        assert isinstance(thread.turns[0], Observation)
    rows = [json.loads(line) for line in (run.stage("rl") / "metrics.jsonl").read_text().splitlines()]
    assert all("reward/answerer" not in row for row in rows)
    assert any("reward/planner" in row for row in rows)
    dropped = sum(row.get("groups/dropped", 0) for row in rows)
    own = sum(len(a.ids) for t in episodes for thread in t.threads if thread.slot == "shared" for a in thread.actions)
    assert rows[-1]["tokens/sampled"] == own if not dropped else rows[-1]["tokens/sampled"] > own
    assert {message["role"] for body in far[1].bodies for message in body["messages"]} == {"user"}


def test_it_plays_along_in_evaluation(run: Run, far: tuple[str, Endpoint]) -> None:
    before = len(far[1].bodies)
    result = json.loads((evaluate(run, "rl") / "result.json").read_text())
    assert result["n"] == 6
    assert len(far[1].bodies) - before == result["status"].get("ok", 0)
    assert {body["temperature"] for body in far[1].bodies[before:]} <= {0.0}


def test_units_keep_what_trained_roles_said() -> None:
    mine, theirs, frozen = (
        Thread(name, "r", slot, turns=[Observation((1,), "x"), Action(f"{name}#0", (2,), (-1.0,), "v", "y", "stop")])
        for name, slot in (("a", "shared"), ("b", "external:far"), ("c", "frozen"))
    )
    t = Trajectory("t", None, "g", 0, "m", 0, threads=[mine, theirs, frozen])  # type: ignore[arg-type]  # no question is read
    whole, foreign = Unit("u", ("a#0", "b#0", "c#0"), 1.0, "o"), Unit("w", ("b#0",), 1.0, "o")
    assert own_credit([whole, foreign], [t]) == [Unit("u", ("a#0",), 1.0, "o")]
    with pytest.raises(ValueError, match="thread b was spoken by external:far: its tokens cannot be trained on"):
        make_batch("shared", [mine, theirs], [whole])


def test_a_worker_may_submit_what_an_endpoint_said_and_no_log_probs_for_it(run: Run) -> None:
    c = run.config
    method = c.method_in(c.schedule[1])
    t = next(t for t in recorded(run) if t.threads_of("answerer"))
    allowed = rules(method, tiny_team())
    lease = Lease(
        "l", 1, "s", "tiny", Group(t.group, t.question, (t.member,), "train", Sampling()), TeamVersion(t.actions[0].version, ""), 60
    )
    assert list(faults(lease, [t], allowed)) == []
    [back] = unpack(pack([t]))
    assert list(faults(lease, [back], allowed)) == []
    [answer] = back.threads_of("answerer")
    said = answer.turns[-1]
    assert isinstance(said, Action)
    answer.turns[-1] = Action(said.id, said.ids, (-0.5,) * len(said.ids), said.version, said.text, said.finish)
    assert [text for text in faults(lease, [back], allowed) if "log-probs, and external:far gives none" in text]
    answer.turns[-1], answer.slot = said, "shared"
    assert [text for text in faults(lease, [back], allowed) if "in slot shared, which decor does not have" in text]
    assert RENDERER.decode(said.ids) == said.text


def test_a_baseline_is_played_by_an_endpoint_alone(far: tuple[str, Endpoint], tmp_path: Path) -> None:
    c = config(far[0], method={"name": "react", "prompts": "compact"}, cast={"actor": "external:far"}, stages={"sft": {"steps": 0}})
    run = create(tmp_path / "run", c)
    inputs(run)
    train(run, "sft")
    before = len(far[1].bodies)
    far[1].replies = ["Thought: x\nAction: Search[mentor]\n", "Thought: y\nAction: Finish[yes]\nObservation: none"]
    result = json.loads((evaluate(run, "sft") / "result.json").read_text())
    assert (result["n"], result["status"], result["searches_per_question"]) == (6, {"ok": 6}, pytest.approx(1 / 6))
    assert len(far[1].bodies) - before == 7
    rows = [json.loads(line) for line in (run.evaluation("sft") / "predictions.jsonl").read_text().splitlines()]
    assert {row["answer"] for row in rows} == {"yes"}
