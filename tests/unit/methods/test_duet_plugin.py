"""The plugin of two slots: what each role sees and earns, and what is trained on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, prompt_of

from rolecast.credit import group_advantages
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods import registry
from rolecast.methods.base import Method
from rolecast.rollout.render import Renderer
from rolecast.schedule import check
from rolecast.tags import tagged
from rolecast.types import Trajectory

FOLDER = Path(__file__).parents[2] / "plugins"
FOUND = {"mentor": [passage(MENTOR)], "employer": [passage(EMPLOYER)]}


@pytest.fixture
def duet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Method]:
    monkeypatch.syspath_prepend(str(FOLDER))
    from duet_method.method import Duet, DuetConfig  # type: ignore[import-not-found]

    yield Duet(DuetConfig(prompts="compact"))
    registry._classes.pop("duet", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "duet_method"]:
        del sys.modules[name]


def played(method: Method, renderer: Renderer, member: int, first: str, again: str, *queries: str) -> tuple[Trajectory, ScriptedEngine]:
    lines = {"scout": [tagged("search", query) for query in queries], "teller": [tagged("answer", first), tagged("answer", again)]}
    engine = ScriptedEngine(renderer, method, lines)
    t = play(method, TWO_HOPS, engine, TableRetriever(FOUND), renderer, LexicalJudge(), member=member)
    assert engine.unsaid == []
    return t, engine


def test_two_scouts_and_a_teller_that_is_asked_again(duet: Method, renderer: Renderer) -> None:
    t, engine = played(duet, renderer, 0, "Kel Dax", "no", "mentor", "employer")
    assert [(thread.id, thread.slot, thread.probe) for thread in t.threads] == [
        ("g.0/left/scout.0", "scout", False), ("g.0/right/scout.0", "scout", False), ("g.0/teller.0", "teller", False),
        ("g.0/probe/teller.again", "teller", True),
    ]  # fmt: skip
    assert [request.slot for request in engine.requests] == ["scout", "scout", "teller", "teller"]
    assert [request.sampling.temperature for request in engine.requests] == [0.0, 0.0, 0.0, 0.5]
    left, right, teller, again = map(prompt_of, t.threads)
    assert left == right
    assert MENTOR.sentence not in left
    assert teller == again
    assert teller.index(MENTOR.sentence) < teller.index(EMPLOYER.sentence)
    assert (t.answer, t.searches) == ("Kel Dax", 2)


def test_a_scout_earns_what_it_found_and_what_is_told_with_it(duet: Method, renderer: Renderer) -> None:
    group = [
        played(duet, renderer, 0, "no", "Kel Dax", "mentor", "nothing")[0],
        played(duet, renderer, 1, "Kel Dax", "no", "mentor", "employer")[0],
    ]
    units = {unit.id: unit for unit in duet.credit(group)}
    grounded = {reward.on: reward.value for t in group for reward in t.rewards if reward.name == "grounded"}
    earned = {id: unit.reward - (grounded[unit.actions[0]] or 0) for id, unit in units.items() if unit.objective == "search"}
    assert earned == {
        "g.0/left/scout.0": 1.5, "g.0/right/scout.0": 1.0,  # the probe's answer is right, the episode's is not
        "g.1/left/scout.0": 0.5, "g.1/right/scout.0": 0.5,
    }  # fmt: skip
    assert [grounded[f"g.{member}/right/scout.0#0"] for member in (0, 1)] == [0.0, pytest.approx(7 / 24)]  # those of " employer"
    tellers = [unit for unit in units.values() if unit.objective == "answer"]
    assert [unit.id for unit in tellers] == ["g.0/teller.0", "g.1/teller.0"]
    assert tellers[1].reward > 1 > tellers[0].reward
    assert list(group_advantages(tellers, 0.0).values()) == pytest.approx([-1.0, 1.0])
    assert {len({unit.chain for unit in units.values()}), len(units)} == {6}
    probes = {action.id for t in group for thread in t.threads if thread.probe for action in thread.actions}
    assert probes
    assert not probes & {action for unit in units.values() for action in unit.actions}


def test_an_episode_that_nobody_is_to_blame_for_has_no_units(duet: Method, renderer: Renderer) -> None:
    lines = {"scout": [tagged("search", "mentor"), tagged("search", "employer")]}
    t = play(duet, TWO_HOPS, ScriptedEngine(renderer, duet, lines), TableRetriever(FOUND), renderer, LexicalJudge(), max_context=30)
    assert (t.status, t.rewards, duet.credit([t])) == ("length", [], [])


def test_its_second_stage_trains_both_slots_and_the_third_one_goes_on(duet: Method) -> None:
    warmup, both, solo = duet.schedule()
    assert (warmup.trained, both.trained, both.critics, solo.trained) == (
        ("scout", "teller"),
        ("scout", "teller"),
        ("critic",),
        ("teller",),
    )
    assert (both.start, solo.start) == ("warmup", "duet")
    assert not any(stage.merges for stage in (warmup, both, solo))
    check(duet.schedule(), duet.roles)
