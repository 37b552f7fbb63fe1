"""DECOR's memory (4.2): what is condensed, when, by whom, and that no fact is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from decor_episodes import decor, episode, states_of
from scripted import (
    EMPLOYER,
    MENTOR,
    TWO_HOPS,
    hop,
    prompt_of,
    said,
)

from rolecast.methods.decor.state import Entry
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Trajectory, Unit
from rolecast.world.grammar import Fact, facts_in

# Memory


CHAIN = [MENTOR, EMPLOYER, Fact("Kel Dax", "founder", "Zen Kol"), Fact("Zen Kol", "rival", "Pral Sed")]
EXTRA = [Fact("Kes Dol", fact.relation, fact.object) for fact in CHAIN]
FOUR_HOPS = replace(TWO_HOPS, gold=Gold(("Pral Sed",), tuple(map(hop, CHAIN))))
EVIDENCE = [f"{fact.sentence} {extra.sentence}" for fact, extra in zip(CHAIN, EXTRA, strict=True)]


def long_script() -> dict[str, Sequence[str]]:
    return {
        "planner": [said("search", fact.query) for fact in CHAIN],
        "filter": [said("filter", evidence) for evidence in EVIDENCE],
        "answerer": [said("answer", "Pral Sed")],
    }


def tokens(renderer: Renderer, memory: Sequence[Entry]) -> int:
    return len(renderer.encode("\n".join(f"{entry.query}: {entry.evidence}" for entry in memory)))


def memory_with(condensed: int) -> list[Entry]:
    """All four entries, the first `condensed` of them condensed."""
    atoms = [f"{fact.atom} {extra.atom}" for fact, extra in zip(CHAIN, EXTRA, strict=True)]
    evidence = [*atoms[:condensed], *EVIDENCE[condensed:]]
    return [Entry(fact.query, text, index < condensed) for index, (fact, text) in enumerate(zip(CHAIN, evidence, strict=True))]


def memory_under(renderer: Renderer, limit: int) -> list[Entry]:
    t, _, _ = episode(renderer, long_script(), method=decor(memory_tokens=limit), question=FOUR_HOPS, documents=[])
    [state] = states_of(t, "answerer")
    return state.memory


def test_a_limit_that_forces_condensing_twice_keeps_every_gold_fact_and_the_newest_entry_whole(renderer: Renderer) -> None:
    limit = tokens(renderer, memory_with(condensed=2))
    memory = memory_under(renderer, limit)
    assert memory == memory_with(condensed=2)
    assert set(CHAIN) <= set(facts_in(" ".join(entry.evidence for entry in memory)))
    assert memory[-1] == Entry(CHAIN[-1].query, EVIDENCE[-1])


@pytest.mark.parametrize(("condensed", "room", "found"), [(0, 0, 0), (0, -1, 1), (1, 0, 1), (1, -1, 2), (3, 0, 3), (3, -1, 3)])
def test_the_earliest_entries_are_condensed_first_and_only_while_the_limit_is_passed(
    renderer: Renderer, condensed: int, room: int, found: int
) -> None:
    limit = tokens(renderer, memory_with(condensed)) + room
    assert memory_under(renderer, limit) == memory_with(found)


def test_a_hopeless_limit_still_loses_no_fact(renderer: Renderer) -> None:
    memory = memory_under(renderer, limit=1)
    assert facts_in(" ".join(entry.evidence for entry in memory)) == [fact for pair in zip(CHAIN, EXTRA, strict=True) for fact in pair]


def test_condensing_does_not_reach_back_into_recorded_states(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, long_script(), method=decor(memory_tokens=1), question=FOUR_HOPS, documents=[])
    assert [entry.evidence for entry in states_of(t, "planner")[1].memory] == EVIDENCE[:1]


def with_model(renderer: Renderer, *replies: str) -> tuple[Trajectory, list[Unit]]:
    method = decor(condenser="model", memory_tokens=1, max_turns=2)
    script = {**{role: lines[:2] for role, lines in long_script().items()}, "condenser": replies}
    t, _, _ = episode(renderer, script, method=method, question=FOUR_HOPS, documents=[])
    return t, method.credit([t])


def test_the_frozen_model_condenses_and_is_never_trained(renderer: Renderer) -> None:
    t, units = with_model(renderer, f"<facts> {MENTOR.atom}</facts>")
    assert [entry.evidence for entry in states_of(t, "answerer")[0].memory] == [MENTOR.atom, EVIDENCE[1]]
    [thread] = t.threads_of("condenser")
    assert thread.slot == "frozen"
    trained = {action for unit in units for action in unit.actions}
    assert not trained & {action.id for action in thread.actions}


def test_the_frozen_model_sees_one_entry_and_nothing_else(renderer: Renderer) -> None:
    t, _ = with_model(renderer, f"<facts> {MENTOR.atom}</facts>")
    [prompt] = [prompt_of(thread) for thread in t.threads_of("condenser")]
    assert f"{MENTOR.query}: {EVIDENCE[0]}" in prompt
    assert FOUR_HOPS.text not in prompt
    assert EVIDENCE[1] not in prompt


@pytest.mark.parametrize("reply", ["sorry", "<facts> cut", "facts: none</facts>"])
def test_evidence_that_the_frozen_model_cannot_condense_is_kept(renderer: Renderer, reply: str) -> None:
    t, _ = with_model(renderer, reply)
    assert (t.status, states_of(t, "answerer")[0].memory[0].evidence) == ("ok", EVIDENCE[0])


def test_an_empty_list_of_facts_does_not_replace_evidence(renderer: Renderer) -> None:
    t, _ = with_model(renderer, "<facts></facts>")
    assert states_of(t, "answerer")[0].memory[0].evidence == EVIDENCE[0]
