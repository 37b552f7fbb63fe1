"""M-ASK against the paper: Algorithm 1 step by step, its probes, faults that never end an episode, and its switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from mask_episodes import DOCUMENTS, END, OPEN, PLAN, SCRIPT, actions, answered, episode, mask, pairs, plan, states
from pydantic import ValidationError
from scripted import EMPLOYER, MENTOR, RIVAL, TWO_HOPS, prompt_of

from rolecast.folds import TOKEN_MEAN
from rolecast.methods.mask import MaskConfig
from rolecast.methods.mask.state import NOTHING, UNKNOWN, Searched
from rolecast.rollout.render import Renderer
from rolecast.rollout.trace_text import conversation
from rolecast.tags import tagged
from rolecast.types import ImitationTerm, PolicyTerm, ValueTerm

FIRST, SECOND = (MENTOR.query, MENTOR.sentence), (EMPLOYER.query, EMPLOYER.sentence)
TURN = ["search", "summary", "update"]

# Algorithm 1


def test_roles_speak_in_the_order_of_algorithm_1_and_probes_come_after(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer)
    assert engine.speakers == ["planning", *TURN, *TURN, "search", "answer", "answer"]
    assert engine.unsaid == []
    assert retriever.asked == [(MENTOR.query, 5), (EMPLOYER.query, 5)]
    assert (t.answer, t.status, t.searches) == ("Kel Dax", "ok", 2)
    assert [thread.id for thread in t.threads] == [
        "g.0/planning.t=0", "g.0/search.t=1", "g.0/summary.t=1", "g.0/update.t=1", "g.0/search.t=2", "g.0/summary.t=2", "g.0/update.t=2",
        "g.0/search.t=3", "g.0/answer.t=2", "g.0/probe/answer.t=1",
    ]  # fmt: skip


def test_each_observation_is_what_its_role_is_to_read(renderer: Renderer) -> None:
    t, _, _ = episode(renderer)
    asked, first, second = (
        f"question: {TWO_HOPS.text}",
        f"\n t1 {MENTOR.query}: {MENTOR.sentence}",
        f"\n t2 {EMPLOYER.query}: {EMPLOYER.sentence}",
    )
    start, waiting = f"\n t1 {MENTOR.query}: unknown", f"\n t2 {OPEN}: unknown"
    expected = [
        f"planning {asked}",
        f"search {asked}{start}{waiting}\n history: ",
        f"summary query: {MENTOR.query}\n {MENTOR.sentence}\n {RIVAL.sentence}",
        f"update {asked}{start}{waiting}\n answer: unknown\n query: {MENTOR.query}: {MENTOR.sentence}",
        f"search {asked}{first}{waiting}\n history: {MENTOR.query}",
        f"summary query: {EMPLOYER.query}\n {EMPLOYER.sentence}\n {DOCUMENTS[EMPLOYER.query][1].text}",
        f"update {asked}{first}{waiting}\n answer: unknown\n query: {EMPLOYER.query}: {EMPLOYER.sentence}",
        f"search {asked}{first}{second}\n history: {MENTOR.query}; {EMPLOYER.query}",
        f"answer {asked}{first}{second}",
        f"answer {asked}{first}{waiting}",  # the probe reads what the episode knew after its first turn
    ]  # fmt: skip
    assert [prompt_of(thread) for thread in t.threads] == [f"<|user|>{text}<|assistant|>" for text in expected]


def test_the_history_keeps_what_the_trajectory_replaces(renderer: Renderer) -> None:
    script = {**SCRIPT, "update": [tagged("Update", "t1"), tagged("Update", "t1")]}
    t, _, _ = episode(renderer, script)
    [*_, last] = states(t, "search")
    assert pairs(last) == [SECOND, (OPEN, UNKNOWN)]
    assert last.history == [Searched(*FIRST), Searched(*SECOND)]
    instruct, _, _ = episode(renderer, script, mask(prompts="instruct"))
    assert f"- {MENTOR.query}: {MENTOR.sentence}" in prompt_of(instruct.threads_of("search")[2])


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("<Update> t1</Update>", [FIRST, (OPEN, UNKNOWN)]),
        ("<Update>t2</Update>", [(MENTOR.query, UNKNOWN), FIRST]),
        ("<Add>t3</Add>", [(MENTOR.query, UNKNOWN), (OPEN, UNKNOWN), FIRST]),
    ],
)
def test_update_says_where_and_the_environment_writes_query_and_evidence(
    renderer: Renderer, said: str, after: list[tuple[str, str]]
) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "search": [SCRIPT["search"][0], END], "update": [said], "answer": [answered("no")]})
    assert pairs(states(t, "answer")[0]) == after
    assert all(action.valid for action in t.actions)


def test_an_ended_episode_without_a_search_is_answered_from_the_plan(renderer: Renderer) -> None:
    known = plan((MENTOR.query, "Vrek Stom"), (OPEN, "Kel Dax"), answer="Kel Dax")
    t, engine, retriever = episode(renderer, {"planning": [known], "search": [END], "answer": [answered("Kel Dax")]})
    assert (engine.speakers, retriever.asked, t.answer) == (["planning", "search", "answer"], [], "Kel Dax")
    assert pairs(states(t, "answer")[0]) == [(MENTOR.query, "Vrek Stom"), (OPEN, "Kel Dax")]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_after_the_last_turn_the_answer_comes_without_another_search(renderer: Renderer, limit: int) -> None:
    script = {
        "planning": [PLAN],
        "search": [tagged("search", f"query {n}") for n in range(limit)],
        "summary": [tagged("evidence", NOTHING)] * limit,
        "update": [tagged("Update", "t1")] * limit,
        "answer": [answered("no")] * limit,
    }
    t, engine, _ = episode(renderer, script, mask(max_turns=limit))
    assert engine.speakers == ["planning", *TURN * limit, *["answer"] * limit]
    assert (t.searches, len(actions(t, "answer", probe=True))) == (limit, limit - 1)


def test_the_number_of_passages_is_an_option(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, method=mask(k=1))
    assert [k for _, k in retriever.asked] == [1, 1]
    assert [len(state.documents) for state in states(t, "summary")] == [1, 1]


# Probes


def test_probes_answer_in_the_states_that_were_recorded(renderer: Renderer) -> None:
    t, _, _ = episode(renderer)
    assert [pairs(state) for state in states(t, "answer", probe=True)] == [[FIRST, (OPEN, UNKNOWN)]]
    assert [pairs(state) for state in states(t, "answer")] == [[FIRST, SECOND]]


@pytest.mark.parametrize("options", [{}, {"credit": "across_steps"}, {"credit": "faithful_eq5"}, {"planning": False}, {"knowledge": False}])
def test_with_probes_off_the_actions_are_the_same(renderer: Renderer, options: dict[str, Any]) -> None:
    trained, _, _ = episode(renderer, method=mask(**options))
    served, engine, _ = episode(renderer, method=mask(**options), phase="eval")
    own = [thread for thread in trained.threads if not thread.probe]
    assert [(thread.id, thread.turns) for thread in own] == [(thread.id, thread.turns) for thread in served.threads]
    assert engine.speakers.count("answer") == 1
    assert (served.answer, served.retrieved) == (trained.answer, trained.retrieved)
    assert len(trained.threads) == len(served.threads) + 1


def test_probes_are_drawn_with_seeds_and_sampling_of_the_episodes_kind(renderer: Renderer) -> None:
    _, engine, _ = episode(renderer)
    assert len({request.seed for request in engine.requests}) == len(engine.requests)
    assert {(request.slot, request.sampling.temperature) for request in engine.requests} == {("shared", 0.0)}


# Faults


def only(t: Any) -> list[tuple[str, bool]]:
    return [(thread.role, action.valid) for thread in t.threads for action in thread.actions if not action.valid]


@pytest.mark.parametrize(
    ("role", "lines", "told"),
    [
        ("planning", ["Kel Dax"], [(TWO_HOPS.text, UNKNOWN)]),
        ("planning", [f"<q1>{MENTOR.query}</q1><a1>unknown</a1>"], [(MENTOR.query, UNKNOWN)]),
        ("summary", ["", SCRIPT["summary"][1]], None),
        ("update", ["t1", SCRIPT["update"][1]], None),
        ("answer", ["Kel Dax", answered("Vrek Stom")], None),
    ],
)
def test_a_reply_of_an_illegal_form_never_ends_the_episode(
    renderer: Renderer, role: str, lines: Sequence[str], told: list[tuple[str, str]] | None
) -> None:
    lines = [line or "<evidence></evidence>" for line in lines]
    t, _, _ = episode(renderer, {**SCRIPT, role: lines, **({"update": [tagged("Add", "t9")] * 2} if told is not None else {})})
    assert t.status == "ok"
    assert (role, False) in only(t)
    faults = {reward.on: reward.value for reward in t.rewards if reward.name == "format"}
    assert faults == {action.id: -1.0 for action in t.actions if not action.valid}
    if told is not None:
        assert pairs(states(t, "search")[0]) == told


@pytest.mark.parametrize(
    ("said", "asked"), [("Brol Tan", "Brol Tan"), ("<search>Brol Tan", "Brol Tan"), ("<search> Brol Tan <end>", "Brol Tan")]
)
def test_a_search_of_an_illegal_form_is_searched_for(renderer: Renderer, said: str, asked: str) -> None:
    t, _, retriever = episode(renderer, {**SCRIPT, "search": [said, *SCRIPT["search"][1:]]})
    assert [query for query, _ in retriever.asked] == [asked, EMPLOYER.query]
    assert only(t) == [("search", False)]


def test_a_search_that_says_nothing_ends_the_turns(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, {**SCRIPT, "search": ["<search></search>"], "answer": [answered("no")]})
    assert (retriever.asked, t.status, only(t)) == ([], "ok", [("search", False)])


def test_a_reply_that_ran_out_of_tokens_is_a_fault_and_read_as_it_is(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "answer": ["<predicted_answer> Kel Dax", answered("no")]})
    assert (t.answer, t.status, only(t)) == ("Kel Dax", "ok", [("answer", False)])


def test_thoughts_before_a_reply_are_no_fault(renderer: Renderer) -> None:
    script = {role: [f"<think>\n{role}?\n</think>\n\n{line}" for line in lines] for role, lines in SCRIPT.items()}
    t, _, _ = episode(renderer, script)
    assert (t.answer, only(t)) == ("Kel Dax", [])
    assert [reward.value for reward in t.rewards if reward.name == "gain"][-1] == 0.0


def test_what_a_token_carried_past_the_stop_string_is_no_fault(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {role: [f"{line}." for line in lines] for role, lines in SCRIPT.items()})
    assert (t.answer, only(t)) == ("Kel Dax", [])
    assert [reward.value for reward in t.rewards if reward.name == "f1"] == [0.0, 0.0, 1.0]


# Overflow


def test_a_context_that_is_full_ends_the_episode_as_length_and_nobody_is_blamed(renderer: Renderer) -> None:
    method = mask()
    t, engine, _ = episode(renderer, method=method, max_context=60)
    assert (t.status, t.answer) == ("length", None)
    assert "answer" not in engine.speakers  # nothing is probed of what cannot be credited
    assert (t.rewards, method.credit([t])) == ([], [])


def test_a_probe_without_room_leaves_the_episode_out_of_training_and_keeps_its_answer(renderer: Renderer) -> None:
    method = mask()
    script = {**SCRIPT, "answer": [SCRIPT["answer"][0], "<predicted_answer>" + " Dax" * 100]}
    longest = max(len(thread.ids) for thread in episode(renderer, method=method)[0].threads)
    t, engine, _ = episode(renderer, script, method, max_context=longest)
    assert engine.unsaid == []
    assert (t.answer, t.status) == ("Kel Dax", "length")
    assert (t.rewards, method.credit([t])) == ([], [])


# Switches


def test_one_objective_with_one_critic_and_the_papers_numbers() -> None:
    [sft, rl] = mask().schedule()
    assert [(stage.name, stage.kind, stage.start, stage.merges, stage.task) for stage in (sft, rl)] == [
        ("sft", "sft", "", ("shared",), "qa"), ("rl", "rl", "sft", ("shared",), "qa"),
    ]  # fmt: skip
    assert [(o.slot, o.imitation) for o in sft.objectives] == [("shared", ImitationTerm(1.0, TOKEN_MEAN))]
    [o] = rl.objectives
    assert (o.slot, o.estimator, o.policy, o.critic, o.kl) == (
        "shared", "gae", PolicyTerm("token", (0.2, 0.2), over=TOKEN_MEAN), ValueTerm("critic", 1e-5), None,
    )  # fmt: skip
    assert (o.lr, o.gamma, o.lam, o.whiten) == (1e-6, 1.0, 1.0, True)
    assert {role.slot for role in mask().roles.values()} == {"shared"}
    config = MaskConfig()
    assert (config.max_turns, config.k, config.credit, config.rewards) == (5, 5, "per_response", "turns")


@pytest.mark.parametrize(
    ("options", "speakers"),
    [
        ({"planning": False}, [*TURN, *TURN, "search", "answer", "answer"]),
        ({"knowledge": False}, ["planning", "search", "search", "search", "answer", "answer"]),
        ({"update_sees": "latest"}, ["planning", *TURN, "answer", *TURN, "answer", "search"]),
        ({"rewards": "final"}, ["planning", *TURN, *TURN, "search", "answer"]),
        ({"credit": "across_steps"}, ["planning", *TURN, *TURN, "search", "answer", "answer"]),
        ({"credit": "faithful_eq5"}, ["planning", *TURN, *TURN, "search", "answer", "answer"]),
    ],
)
def test_who_speaks_under_each_switch(renderer: Renderer, options: dict[str, Any], speakers: list[str]) -> None:
    _, engine, _ = episode(renderer, method=mask(**options))
    assert engine.speakers == speakers


def test_without_planning_the_trajectory_starts_empty(renderer: Renderer) -> None:
    method = mask(planning=False)
    script = {**SCRIPT, "update": [tagged("Add", "t1"), tagged("Add", "t2")]}
    t, _, _ = episode(renderer, script, method)
    assert "planning" not in method.roles
    assert [pairs(state) for state in states(t, "search")] == [[], [FIRST], [FIRST, SECOND]]
    assert {state.predicted for state in states(t, "update")} == {UNKNOWN}
    assert only(t) == []


def test_the_trajectory_may_start_with_the_question_and_plannings_answer_as_it_is_released(renderer: Renderer) -> None:
    script = {**SCRIPT, "planning": [plan((MENTOR.query, UNKNOWN), answer="Kel")], "update": [tagged("Update", "t1"), tagged("Add", "t2")]}
    t, engine, _ = episode(renderer, script, mask(starts_with="question"))
    assert [pairs(state) for state in states(t, "search")] == [[(TWO_HOPS.text, "Kel")], [FIRST], [FIRST, SECOND]]
    assert engine.speakers == ["planning", *TURN, *TURN, "search", "answer", "answer"]
    assert next(reward.value for reward in t.rewards if reward.name == "f1") == pytest.approx(2 / 3)  # planning is still rewarded
    assert {unit.tag for unit in mask().credit([t])} >= {"planning"}


def test_without_knowledge_management_documents_are_appended_as_they_are(renderer: Renderer) -> None:
    method = mask(knowledge=False)
    t, _, _ = episode(renderer, method=method)
    assert set(method.roles) == {"planning", "search", "answer"}
    found = [(query, " ".join(p.text for p in documents)) for query, documents in DOCUMENTS.items()]
    assert pairs(states(t, "answer")[0]) == [(MENTOR.query, UNKNOWN), (OPEN, UNKNOWN), *found]
    assert RIVAL.sentence in prompt_of(t.threads_of("answer")[0])
    assert (t.answer, t.searches) == ("Kel Dax", 2)


def test_update_may_be_shown_the_latest_answer_as_it_is_released(renderer: Renderer) -> None:
    script = {**SCRIPT, "answer": [answered("Vrek Stom"), answered("Kel Dax")]}
    shown = {}
    for sees, lines in (("first", SCRIPT), ("latest", script)):
        t, _, _ = episode(renderer, lines, mask(update_sees=sees))
        assert t.answer == "Kel Dax"
        shown[sees] = [state.predicted for state in states(t, "update")]
        assert [f"answer: {said}\n" in prompt_of(thread) for thread, said in zip(t.threads_of("update"), shown[sees], strict=True)] == [
            True
        ] * 2
    assert shown == {"first": [UNKNOWN, UNKNOWN], "latest": [UNKNOWN, "Vrek Stom"]}


def test_the_latest_answer_is_given_in_every_phase_and_nothing_is_probed(renderer: Renderer) -> None:
    script = {**SCRIPT, "answer": [answered("Vrek Stom"), answered("Kel Dax")]}
    trained, _, _ = episode(renderer, script, mask(update_sees="latest"))
    served, _, _ = episode(renderer, script, mask(update_sees="latest"), phase="eval")
    assert [thread.turns for thread in trained.threads] == [thread.turns for thread in served.threads]
    assert [(r.name, r.value) for r in trained.rewards] == [(r.name, r.value) for r in served.rewards]


def test_the_latest_answer_to_no_turn_at_all_is_given_once(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, {**SCRIPT, "search": [END], "answer": [answered("x")]}, mask(update_sees="latest"))
    assert (engine.speakers, t.answer) == (["planning", "search", "answer"], "x")


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ({}, "qa"),
        ({"failed": "dropped"}, "qa+answered"),
        ({"yes_no": "left_out"}, "qa+spans"),
        ({"failed": "dropped", "yes_no": "left_out"}, "qa+answered+spans"),
    ],
)
def test_what_released_code_leaves_out_of_a_score_is_a_task(options: Mapping[str, Any], task: str) -> None:
    stages, usual = mask(**options).schedule(), mask().schedule()
    assert [stage.task for stage in stages] == [task, task]
    assert [stage.objectives for stage in stages] == [stage.objectives for stage in usual]


@pytest.mark.parametrize(
    "bad", [{"max_turns": 0}, {"k": 0}, {"credit": "gae"}, {"knowledge": "some"}, {"clip": 0}, {"unknown": 1}, {"update_sees": "all"}]
)
def test_config_is_closed_and_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MaskConfig(**bad)


@pytest.mark.parametrize("credit", ["across_steps", "faithful_eq5"])
def test_one_reward_for_all_does_not_add_up(credit: str) -> None:
    with pytest.raises(ValidationError, match="takes credit: per_response"):
        MaskConfig(rewards="final", credit=credit)  # type: ignore[arg-type]


def test_figures_of_an_episode(renderer: Renderer) -> None:
    added = {
        **SCRIPT,
        "planning": [plan((MENTOR.query, UNKNOWN), answer="Kel Dax")],
        "update": [tagged("Update", "t1"), tagged("Add", "t2")],
    }
    cut = {**SCRIPT, "search": SCRIPT["search"][:1], "answer": [answered("no")]}
    method = mask()
    group = [episode(renderer, added, method)[0], episode(renderer, cut, mask(max_turns=1), member=1)[0]]
    for t in group:
        t.states.clear()  # they do not travel
    assert method.diagnostics(group) == pytest.approx({"planning_f1": 0.5, "turns": 1.5, "ended": 0.5, "added": 1 / 3})
    assert method.diagnostics([]) == {}


def test_what_the_terminal_shows_of_an_episode(renderer: Renderer) -> None:
    lines = conversation(episode(renderer, phase="serve")[0]).splitlines()
    own = [line for line in lines if not line.startswith(("found:", " "))]
    assert own[:8] == [
        "planning:  q1 mentor of Brol Tan",
        "planning:  a1 unknown",
        "planning:  q2 employer of t1",
        "planning:  a2 unknown",
        "planning:  answers unknown",
        "search:    searches mentor of Brol Tan",
        "summary:   keeps The mentor of Brol Tan is Vrek Stom.",
        "update:    replaces t1",
    ]
    assert own[-3:] == ["search:    ends", "answer:    answers Kel Dax", "answer:    Kel Dax"]
