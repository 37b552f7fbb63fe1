"""CoDA's episode: who opens which thread, what comes back, and what an executor's fault costs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from coda_episodes import ANSWER, DOCUMENTS, INVALID, MONOLITH, NESTED, PLANNER, SCRIPT, coda, earned, episode, observed, refined, worked
from pydantic import ValidationError
from scripted import EMPLOYER, MENTOR, RIVAL, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, prompt_of, said

from rolecast.errors import EngineError
from rolecast.methods.coda import CodaConfig
from rolecast.methods.coda.moves import Move, read
from rolecast.methods.coda.state import Pair
from rolecast.rollout.render import Renderer
from rolecast.types import Action, Observation, Passage

THINK, REFINE = "<think> a</think>", "<refine> b</refine>"
TASK, SEARCH, DONE = "<task> c</task>", "<search> c</search>", "<answer> c</answer>"


@pytest.mark.parametrize(
    ("role", "text", "searched", "move"),
    [
        ("planner", THINK + TASK, False, Move("task", "c")),
        ("planner", THINK + DONE, False, Move("answer", "c")),
        ("planner", THINK + SEARCH, False, None),
        ("planner", TASK, False, None),
        ("planner", THINK + TASK + DONE, False, None),
        ("planner", THINK + "<task> </task>", False, None),
        ("executor", THINK + SEARCH, False, Move("search", "c")),
        ("executor", THINK + DONE, False, Move("answer", "c")),
        ("executor", THINK + TASK, False, None),
        ("executor", REFINE + SEARCH, False, None),
        ("executor", REFINE + SEARCH, True, Move("search", "c", "b")),
        ("executor", REFINE + DONE, True, Move("answer", "c", "b")),
        ("executor", REFINE + THINK + SEARCH, True, Move("search", "c", "b")),
        ("executor", THINK + REFINE + DONE, True, Move("answer", "c", "b")),
        ("executor", THINK + DONE, True, Move("answer", "c")),
        ("executor", "<refine></refine>" + SEARCH, True, Move("search", "c", "")),
        ("executor", REFINE, True, None),
        ("executor", DONE, True, None),
        ("lead", THINK + TASK, False, Move("task", "c")),
        ("lead", REFINE + TASK, True, Move("task", "c", "b")),
        ("lead", THINK + SEARCH, False, Move("search", "c")),
        ("monolith", THINK + SEARCH, False, Move("search", "c")),
        ("monolith", THINK + TASK, False, None),
    ],
)
def test_what_each_role_may_say(role: str, text: str, searched: bool, move: Move | None) -> None:
    assert read(text, role, searched) == move


# The loop


def test_a_planner_and_an_executor_for_each_task(renderer: Renderer) -> None:
    t, engine = episode(renderer, SCRIPT)
    assert (t.answer, t.status, t.searches, engine.unsaid) == ("Kel Dax", "ok", 2, [])
    assert engine.speakers == ["planner", "executor", "executor", "planner", "executor", "executor", "planner"]
    planner, *executors = t.threads
    assert [(thread.role, thread.parent) for thread in t.threads] == [("planner", None), ("executor", planner.id), ("executor", planner.id)]
    assert observed(planner) == ["\n<result> Vrek Stom</result>\n", "\n<result> Kel Dax</result>\n"]
    assert [prompt_of(thread).partition("task: ")[2].partition("<")[0] for thread in executors] == [MENTOR.query, EMPLOYER.query]
    assert observed(executors[0]) == [f"\n<documents> {MENTOR.sentence}\n {RIVAL.sentence}</documents>\n"]


def test_threads_only_grow(renderer: Renderer) -> None:
    t, engine = episode(renderer, SCRIPT)
    for thread in t.threads:
        turns = [type(turn) for turn in thread.turns]
        assert turns == [Observation, Action] * (len(turns) // 2)
        spoken = [request for request in engine.requests if request.key.startswith(f"{thread.id}#")]
        for number, request in enumerate(spoken):
            assert request.ids == tuple(token for turn in thread.turns[: 2 * number + 1] for token in turn.ids)


def test_instruct_documents_are_numbered_and_titled_and_come_whole(renderer: Renderer) -> None:
    long = Passage("p", "Title", " ".join(["one"] * 700))
    t, _ = episode(renderer, SCRIPT, coda(prompts="instruct"), documents=[long, passage(RIVAL)])
    executor = t.threads_of("executor")[0]
    assert observed(executor) == [f"\n<documents>Doc 1 (Title: Title) {long.text}\nDoc 2 (Title: Brol Tan) {RIVAL.sentence}</documents>\n"]


def test_three_passages_and_six_turns_by_default(renderer: Renderer) -> None:
    config = CodaConfig()
    assert (config.k, config.max_turns, config.refine_weight, config.max_tokens) == (3, 6, 0.5, 512)
    retriever = TableRetriever([passage(MENTOR)] * 9)
    episode(renderer, SCRIPT, retriever=retriever)
    assert retriever.asked == [(MENTOR.query, 3), (EMPLOYER.query, 3)]


def test_a_planner_has_six_turns_and_no_forced_last_answer(renderer: Renderer) -> None:
    script = {"planner": [said("task", MENTOR.query)] * 6, "executor": worked(MENTOR) * 5}
    t, engine = episode(renderer, script)
    assert (t.answer, t.status, engine.unsaid) == (None, "ok", [])
    assert (engine.speakers.count("planner"), len(t.threads_of("executor"))) == (6, 5)  # what the last turn asks for nobody would read
    assert isinstance(t.threads[0].turns[-1], Action)


def test_an_executor_has_six_turns_and_its_result_is_empty_if_it_never_answers(renderer: Renderer) -> None:
    searching = [said("search", MENTOR.query), *[refined("", "search", MENTOR.query)] * 5]
    t, engine = episode(renderer, {"planner": [PLANNER[0], ANSWER], "executor": searching})
    assert (engine.unsaid, t.searches, t.answer, t.status) == ([], 5, "Kel Dax", "ok")
    assert observed(t.threads[0]) == ["\n<result></result>\n"]


@pytest.mark.parametrize("turns", [1, 2])
def test_the_number_of_turns_is_an_option_of_both_levels(renderer: Renderer, turns: int) -> None:
    script = {"planner": [said("task", MENTOR.query)] * turns, "executor": [said("search", MENTOR.query)] * turns * (turns - 1)}
    t, engine = episode(renderer, script, coda(max_turns=turns))
    assert (t.answer, engine.unsaid) == (None, [])


@pytest.mark.parametrize("style", ["compact", "instruct"])
def test_a_reply_that_broke_its_form_is_asked_again(renderer: Renderer, style: str) -> None:
    script = {"planner": [INVALID, PLANNER[0], ANSWER], "executor": [INVALID, *worked(MENTOR)]}
    t, engine = episode(renderer, script, coda(prompts=style))
    assert (t.answer, t.status, engine.unsaid) == ("Kel Dax", "ok", [])
    planner, executor = t.threads
    assert [action.valid for action in t.actions] == [False, True, True, False, True, True]
    if style == "compact":
        assert observed(planner)[0] == observed(executor)[0] == "\n again\n"
        return
    assert "<task> </task>" in observed(planner)[0]
    assert "<search>" not in observed(planner)[0]
    assert "<search> </search>" in observed(executor)[0]
    assert "<task>" not in observed(executor)[0]


def test_broken_replies_use_up_turns(renderer: Renderer) -> None:
    t, engine = episode(renderer, {"planner": [INVALID] * 6})
    assert (t.answer, t.status, len(engine.speakers), t.threads_of("executor")) == (None, "ok", 6, [])


def test_what_a_token_carried_past_the_stop_string_is_no_fault(renderer: Renderer) -> None:
    script = {role: [f"{line}." for line in lines] for role, lines in SCRIPT.items()}
    t, _ = episode(renderer, script)
    assert (t.answer, all(action.valid for action in t.actions)) == ("Kel Dax", True)
    assert (earned(t, "format.planner"), earned(t, "format.executor"), earned(t, "refine")) == ([1.0], [1.0, 1.0], [1.0])


def test_each_state_is_its_threads_own(renderer: Renderer) -> None:
    t, _ = episode(renderer, SCRIPT)
    planner, first, _ = t.threads
    states = [t.states[action.id] for action in planner.actions]
    assert [state.pairs for state in states] == [
        [], [Pair(MENTOR.query, "Vrek Stom")], [Pair(MENTOR.query, "Vrek Stom"), Pair(EMPLOYER.query, "Kel Dax")],
    ]  # fmt: skip
    [before, after] = [t.states[action.id] for action in first.actions]
    assert (before.task, before.question, before.pairs, before.queries) == (MENTOR.query, "", [], [])
    assert (after.queries, after.documents) == ([MENTOR.query], DOCUMENTS[MENTOR.query])


# An executor's fault


class Failing(TableRetriever):
    """Fails the searches with these numbers."""

    def __init__(self, *failing: int) -> None:
        super().__init__(DOCUMENTS)
        self.failing = failing

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = await super().search(queries, k)
        if len(self.asked) - 1 in self.failing:
            raise OSError("the index is on fire")
        return found


def test_a_failed_search_is_an_empty_result_and_the_episode_goes_on(renderer: Renderer, caplog: pytest.LogCaptureFixture) -> None:
    script = {**SCRIPT, "executor": [said("search", MENTOR.query), *worked(EMPLOYER)]}
    with caplog.at_level(logging.WARNING):
        t, engine = episode(renderer, script, retriever=Failing(0))
    assert (t.answer, t.status, engine.unsaid) == ("Kel Dax", "ok", [])
    assert observed(t.threads[0]) == ["\n<result></result>\n", "\n<result> Kel Dax</result>\n"]
    [line] = [record.getMessage() for record in caplog.records]
    assert "the search for 'mentor of Brol Tan' failed: OSError: the index is on fire" in line
    assert "\n" not in line


def test_an_executors_full_context_is_an_empty_result_and_the_episode_goes_on(renderer: Renderer) -> None:
    flood = [Passage("p", "", " one" * 400)]
    script = {**SCRIPT, "executor": [said("search", MENTOR.query), *worked(EMPLOYER)]}
    t, engine = episode(renderer, script, documents={**DOCUMENTS, MENTOR.query: flood}, max_context=300)
    assert (t.answer, t.status, engine.unsaid) == ("Kel Dax", "ok", [])
    assert observed(t.threads[0]) == ["\n<result></result>\n", "\n<result> Kel Dax</result>\n"]
    assert len(t.threads_of("executor")[0].ids) > 300 > len(t.threads[0].ids)


def test_the_planners_full_context_is_the_end_of_the_episode(renderer: Renderer) -> None:
    t, engine = episode(renderer, SCRIPT, max_context=80)
    assert (t.status, t.answer, engine.speakers[-1]) == ("length", None, "executor")
    assert (t.rewards, coda().credit([t])) == ([], [])


def test_an_engine_that_fails_ends_everything(renderer: Renderer) -> None:
    class Broken(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            if len(self.speakers) == 2:
                raise OSError("no device")
            return await super().generate(request)

    method = coda()
    with pytest.raises(EngineError, match="no device"):
        play(method, TWO_HOPS, Broken(renderer, method, SCRIPT), TableRetriever(DOCUMENTS), renderer)


def test_a_monoliths_failed_search_is_told_as_a_fault(renderer: Renderer) -> None:
    with pytest.raises(Exception, match="the search for 'mentor of Brol Tan' failed: OSError"):
        episode(renderer, MONOLITH, coda(structure="monolithic"), retriever=Failing(0))


# Variants


def test_the_monolith_has_one_context_with_the_documents(renderer: Renderer) -> None:
    method = coda(structure="monolithic")
    t, engine = episode(renderer, MONOLITH, method)
    assert (t.answer, t.searches, engine.unsaid, list(method.roles)) == ("Kel Dax", 2, [], ["monolith"])
    [thread] = t.threads
    assert MENTOR.sentence in observed(thread)[0]
    assert EMPLOYER.sentence in observed(thread)[1]


def test_a_lead_delegates_once_more(renderer: Renderer) -> None:
    t, engine = episode(renderer, NESTED, coda(depth=2))
    assert (t.answer, engine.unsaid) == ("Kel Dax", [])
    planner, lead, *executors = t.threads
    assert [thread.role for thread in t.threads] == ["planner", "lead", "executor", "executor"]
    assert (lead.parent, [thread.parent for thread in executors]) == (planner.id, [lead.id] * 2)
    assert observed(lead) == ["\n<result> Vrek Stom</result>\n", "\n<result> Kel Dax</result>\n"]
    assert observed(planner) == ["\n<result> Kel Dax</result>\n"]


def test_a_lead_may_search_itself_and_delegate_in_one_thread(renderer: Renderer) -> None:
    lead = [said("search", MENTOR.query), refined(MENTOR.sentence, "task", EMPLOYER.query), said("answer", "Kel Dax")]
    t, engine = episode(renderer, {"planner": NESTED["planner"], "lead": lead, "executor": worked(EMPLOYER)}, coda(depth=2))
    assert (t.answer, engine.unsaid, earned(t, "format.executor")) == ("Kel Dax", [], [1.0, 1.0])


def test_a_nested_executors_fault_is_its_leads_empty_result(renderer: Renderer) -> None:
    script = {**NESTED, "executor": [said("search", MENTOR.query), *worked(EMPLOYER)]}
    t, _ = episode(renderer, script, coda(depth=2), retriever=Failing(0))
    assert observed(t.threads_of("lead")[0]) == ["\n<result></result>\n", "\n<result> Kel Dax</result>\n"]
    assert (t.answer, t.status) == ("Kel Dax", "ok")


def test_an_executor_of_the_lowest_level_cannot_delegate(renderer: Renderer) -> None:
    script = {**NESTED, "executor": [said("task", MENTOR.query), *worked(MENTOR), *worked(EMPLOYER)]}
    t, _ = episode(renderer, script, coda(depth=2))
    assert [thread.role for thread in t.threads] == ["planner", "lead", "executor", "executor"]
    assert not t.threads_of("executor")[0].actions[0].valid


def test_one_level_is_the_same_whether_or_not_a_second_may_be_had(renderer: Renderer) -> None:
    """Where a lead delegates nothing it is told what an executor is told."""
    one, _ = episode(renderer, SCRIPT)
    two, _ = episode(renderer, {"planner": PLANNER, "lead": SCRIPT["executor"]}, coda(depth=2))
    assert [observed(thread) for thread in one.threads] == [observed(thread) for thread in two.threads]
    assert [action.text for action in one.actions] == [action.text for action in two.actions]


@pytest.mark.parametrize(
    "bad",
    [
        {"depth": 3}, {"depth": 0}, {"structure": "flat"}, {"reward": "f1"}, {"dual_clip": 1.0}, {"k": 0}, {"max_turns": 0}, {"unknown": 1},
        {"structure": "monolithic", "depth": 2},
    ],
)  # fmt: skip
def test_config_is_closed_and_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CodaConfig(**bad)
