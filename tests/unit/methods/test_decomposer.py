"""DecomposeR against the paper: the rollout (3.2), what is rewarded (3.4, A.5) and how it is credited (A.2), the stages and the ablations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from decomposer_episodes import (
    DOCUMENTS,
    DRAFT,
    EMPLOYER,
    GOLD,
    LONG,
    MAYOR,
    MENTOR,
    PAIR,
    PLAN,
    REPORT,
    SCRIPT,
    TWIN,
    E,
    Library,
    M,
    Y,
    decomposer,
    episode,
    states_of,
    values,
)
from pydantic import ValidationError
from scripted import TWO_HOPS, ScriptedEngine, ScriptedJudge, passage, play, prompt_of

from rolecast.credit import group_advantages
from rolecast.errors import InputError
from rolecast.folds import mean
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.decomposer import Decomposer, DecomposerConfig
from rolecast.methods.decomposer.judge import KINDS
from rolecast.methods.decomposer.rewards import Weights
from rolecast.methods.registry import make_method
from rolecast.reduction import item_weights
from rolecast.rollout.env import PREPARE, Env
from rolecast.rollout.render import Renderer
from rolecast.schedule import find
from rolecast.types import Action, Gold, Passage, Question, Reward, Stage, Thread, Trajectory, Unit

# The rollout


def test_plan_search_revise_search_and_answer_in_waves(renderer: Renderer) -> None:
    t, engine, library = episode(renderer)
    assert engine.speakers == ["planner", "reviser", "answerer", "writer"]
    assert engine.unsaid == []
    assert library.calls == [[MENTOR.query, MAYOR.query], [EMPLOYER.query]]  # each in one call; what was found is kept
    assert [k for _, k in library.asked] == [5, 5, 5]
    assert (t.answer, t.status, t.searches) == ("Kel Dax and Zen Kol", "ok", 3)


def test_each_role_reads_what_it_is_given(renderer: Renderer) -> None:
    t, _, _ = episode(renderer)
    twin = f"{TWIN.sentence}[2]"
    assert [prompt_of(thread).removeprefix("<|user|>").removesuffix("<|assistant|>") for thread in t.threads] == [
        f"planner question: {PAIR.text}",
        f"reviser question: {PAIR.text}\n {DRAFT}\n {MENTOR.query}:\n {M}\n {twin}\n {MAYOR.query}:\n {Y}\n {twin}",
        f"answerer\n 4:\n {MENTOR.query}:\n {M}\n {twin}\n {EMPLOYER.query}:\n {E}\n 5:\n {MAYOR.query}:\n {Y}\n {twin}",
        f"writer 6: {PAIR.text}\n {M} {E}\n {Y}",
    ]


def test_waves_go_from_what_is_there_to_what_builds_on_it(renderer: Renderer) -> None:
    script = {
        **SCRIPT,
        "reviser": [f"<graph> search {MENTOR.query}; search {MAYOR.query}; join 1; join 2; join 3 4; answer 5</graph><fetch></fetch>"],
        "answerer": [
            f"<nodes><node id=4> {Y}</node><node id=3> {M}</node></nodes>",
            f"<nodes><node id=5> {M} {Y}</node></nodes>",
        ],
    }  # fmt: skip
    t, engine, _ = episode(renderer, script)
    assert engine.speakers == ["planner", "reviser", "answerer", "answerer", "writer"]
    assert [thread.key for thread in t.threads_of("answerer")] == ["wave0", "wave1"]
    second = states_of(t, "answerer")[1].wave
    assert [(node.id, dict(node.reports), node.evidence) for node in second] == [("5", {"3": M, "4": Y}, [])]
    [final] = states_of(t, "writer")
    assert final.final is not None
    assert dict(final.final.reports) == {"5": f"{M} {Y}"}


def test_searches_that_feed_the_answer_are_read_by_its_writer(renderer: Renderer) -> None:
    script = {**SCRIPT, "reviser": [f"<graph> search {MENTOR.query}; search {MAYOR.query}; join 1; answer 3 2</graph><fetch></fetch>"],
              "answerer": [f"<nodes><node id=3> {M}</node></nodes>"]}  # fmt: skip
    script["writer"] = [SCRIPT["writer"][0].replace("<node id=6>", "<node id=4>")]
    t, _, _ = episode(renderer, script)
    [state] = states_of(t, "writer")
    assert state.final is not None
    assert ([source.number for source in state.final.sources], dict(state.final.reports)) == ([3, 2], {"3": M})
    assert [source.number for source in state.catalogue] == [1, 2, 3]  # what it reads, and what the branches cite


def test_the_catalogue_has_what_the_branches_cite(renderer: Renderer) -> None:
    script = {**SCRIPT, "answerer": [f"<nodes><node id=4> {E}[99]</node><node id=5> {Y}</node></nodes>"]}
    t, _, _ = episode(renderer, script)
    assert [source.number for source in states_of(t, "writer")[0].catalogue] == [3, 4]


@pytest.mark.parametrize("draft", ["nonsense", "<graph> search a; join 9; answer 2</graph>", "<graph> search a"])
def test_a_first_graph_that_is_none_can_still_be_mended(renderer: Renderer, draft: str) -> None:
    t, _, library = episode(renderer, {**SCRIPT, "planner": [draft]})
    assert [action.valid for action in t.actions] == [False, True, True, True]
    assert library.calls == [[MENTOR.query, EMPLOYER.query, MAYOR.query]]
    assert prompt_of(t.threads_of("reviser")[0]) == f"<|user|>reviser question: {PAIR.text}\n <|assistant|>"
    assert t.status == "ok"


@pytest.mark.parametrize(
    "revised",
    [
        "nonsense",
        f"<graph> {PLAN}</graph>",
        f"<graph> {PLAN}</graph><fetch> all</fetch>",
        f"<graph> {PLAN}; answer 6</graph><fetch></fetch>",
        f"<graph> {DRAFT.replace('join 1', 'join 7')}</graph><fetch></fetch>",
    ],
)
def test_an_invalid_revised_graph_ends_the_episode(renderer: Renderer, revised: str) -> None:
    t, engine, library = episode(renderer, {**SCRIPT, "reviser": [revised]}, LexicalJudge())
    assert engine.speakers == ["planner", "reviser"]
    assert (t.status, t.answer, len(library.calls)) == ("format", None, 1)
    assert values(t) == {"planner": 0.0, "graph.invalid": 1.0, "report": 0.0}
    assert [(unit.tag, unit.reward, len(unit.actions)) for unit in decomposer().credit([t])] == [("planner", 0.0, 2)]


def test_a_full_context_is_nobodys_fault(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, judge=LexicalJudge(), max_context=60)
    assert t.status == "length"
    assert values(t) == {"report": 0.0}
    assert decomposer().credit([t]) == []


# Fetching

PAGES = {"long": " ".join(f"word{n}" for n in range(200)), "other": "whole page"}


def fetching(renderer: Renderer, wanted: str, **options: Any) -> tuple[Trajectory, Library]:
    documents = {
        **DOCUMENTS,
        MENTOR.query: [Passage("long", "T", "word0 word1 word2 word3"), passage(MENTOR), Passage("other", "", "whole")],
    }
    method = decomposer(snippet_words=2, **options)
    engine = ScriptedEngine(renderer, method, {**SCRIPT, "reviser": [f"<graph> {PLAN}</graph><fetch> {wanted}</fetch>"]})
    library = Library(documents, pages=PAGES)
    return play(method, PAIR, engine, library, renderer), library


def test_results_are_snippets_until_they_are_fetched(renderer: Renderer) -> None:
    t, library = fetching(renderer, "1")
    assert library.fetched == ["long"]
    assert t.retrieved.count("long") == 2  # found and fetched
    [reviser], [answerer] = states_of(t, "reviser"), states_of(t, "answerer")
    assert reviser.results[0].sources[0].text == "word0 word1 …"
    texts = {source.number: source.text for node in answerer.wave for source in node.sources}
    assert (texts[1], texts[3]) == (PAGES["long"], "whole")
    assert texts[2] == "The mentor …"


@pytest.mark.parametrize(
    ("wanted", "options", "fetched"),
    [
        ("", {}, []),
        ("3, 1", {}, ["other", "long"]),
        ("1 1 3", {}, ["long", "other"]),
        ("0 77 3", {}, ["other"]),  # numbers of no result
        ("6", {}, []),  # found after the planner's second turn
        ("1 2 3 4", {"fetches": 2}, ["long", MENTOR.sentence]),
        ("1", {"fetches": 0}, []),
    ],
)
def test_what_is_fetched(renderer: Renderer, wanted: str, options: dict[str, Any], fetched: list[str]) -> None:
    assert fetching(renderer, wanted, **options)[1].fetched == fetched


def test_at_most_four_by_default(renderer: Renderer) -> None:
    assert fetching(renderer, "1 2 3 4 5")[1].fetched == ["long", MENTOR.sentence, "other", MAYOR.sentence]


# Faults of the answerer (A.5): what is finished still counts

SCORED = {"judge": LexicalJudge()}


def test_a_wave_that_cannot_be_read_leaves_the_waves_before(renderer: Renderer) -> None:
    plan = f"search {MENTOR.query}; search {MAYOR.query}; join 1; join 2; join 3 4; answer 5"
    script = {**SCRIPT, "reviser": [f"<graph> {plan}</graph><fetch></fetch>"],
              "answerer": [f"<nodes><node id=3> {M}</node><node id=4> {Y}</node></nodes>", "<nodes> nothing</nodes>"]}  # fmt: skip
    t, engine, _ = episode(renderer, script, LexicalJudge())
    assert (engine.speakers[-1], t.status) == ("answerer", "format")
    one, two = (asyncio.run(node_scores(report, query)) for report, query in ((M, MENTOR.query), (Y, MAYOR.query)))
    expected = 3 / (1 / (one + 0.1) + 1 / (two + 0.1) + 1 / 0.1) - 0.1
    found = values(t)
    assert found["answerer.execution"] == pytest.approx(expected)
    assert found["answerer"] == pytest.approx(0.5 * expected)
    assert (found["report"], "answerer.judge" in found) == (0.0, False)
    units = {unit.tag: unit for unit in decomposer().credit([t])}
    assert len(units["answerer"].actions) == 2
    assert units["answerer"].reward == found["answerer"]


async def node_scores(report: str, query: str) -> float:
    """Eq. 26 of one key point and one sentence, over the library's directions."""
    from rolecast.methods.decomposer.rewards import node_score, sentences_of
    from rolecast.methods.decomposer.scoring import vectors_of

    return node_score([query], report, await vectors_of([query, *sentences_of(report)], Library().embed), Weights())


@pytest.mark.parametrize("reply", ["nothing", "<nodes><node id=4> a</node></nodes>", "<nodes><node id=4> a</node><node id=5> b"])
def test_without_any_finished_wave_the_answerer_earns_nothing(renderer: Renderer, reply: str) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "answerer": [reply]}, LexicalJudge())
    assert (t.status, values(t)["answerer"], values(t)["report"]) == ("format", pytest.approx(0.0), 0.0)


def test_a_final_reply_that_cannot_be_read_keeps_what_was_executed(renderer: Renderer) -> None:
    whole, _, _ = episode(renderer, judge=LexicalJudge())
    t, _, _ = episode(renderer, {**SCRIPT, "writer": [f"<node id=6> {REPORT}</node>"]}, LexicalJudge())
    assert t.status == "format"
    assert values(t)["answerer.execution"] == values(whole)["answerer.execution"]
    assert values(t)["answerer"] == pytest.approx(0.5 * (values(t)["answerer.execution"] or 0))


# Rewards


def test_a_whole_episode_has_all_of_them(renderer: Renderer) -> None:
    t, _, library = episode(renderer, judge=LexicalJudge())
    found = values(t)
    assert (found["report"], found["answerer.judge"], found["answerer.utilisation"]) == (1.0, 1.0, 1.0)
    assert found["answerer"] == pytest.approx(0.5 * found["answerer.execution"] + 0.5)  # type: ignore[operator]
    w = Weights()
    search = w.recall * found["planner.recall"] + w.distinctness * found["planner.distinctness"]  # type: ignore[operator]
    expressive = (
        w.branches * found["planner.branches"] + w.connectivity * found["planner.connectivity"] + w.breadth * found["planner.breadth"]
    )  # type: ignore[operator]
    assert found["planner"] == pytest.approx(w.coverage * found["planner.coverage"] + w.search * search + w.expressiveness * expressive)  # type: ignore[operator]
    assert {reward.on for reward in t.rewards} == {t.id}
    assert "Kel Dax and Zen Kol" in library.embedded  # the answer is an item of the rubric


def test_the_figures_of_a_graph(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, judge=LexicalJudge())
    assert {name: value for name, value in values(t).items() if name.startswith("graph.")} == {
        "graph.invalid": 0, "graph.nodes": 6, "graph.searches": 3, "graph.aggregates": 2, "graph.edges": 5,
        "graph.search-aggregate": 3, "graph.aggregate-aggregate": 0, "graph.search-answer": 0, "graph.aggregate-answer": 2,
    }  # fmt: skip
    figures = decomposer().diagnostics([t])
    assert (figures["graph.nodes"], figures["answer.words"]) == (6, len(REPORT.split()))
    bad, _, _ = episode(renderer, {**SCRIPT, "reviser": ["no"]}, LexicalJudge())
    assert decomposer().diagnostics([t, bad])["graph.invalid"] == 0.5
    assert decomposer().diagnostics([t, bad])["graph.nodes"] == 6  # of graphs that are some


def test_the_judge_is_asked_item_by_item_and_for_the_answer(renderer: Renderer) -> None:
    judge = ScriptedJudge(decomposer_rubric=[1.0, 0.5, 0.25], answer=[1.0])
    t, _, _ = episode(renderer, judge=judge)
    assert [inputs["item"] for inputs in judge.seen["decomposer.rubric"]] == [fact.sentence for fact in (MENTOR, EMPLOYER, MAYOR)]
    assert judge.seen["decomposer.rubric"][0]["report"] == REPORT
    assert judge.seen["decomposer.rubric"][0]["sources"] == {"1": MENTOR.sentence, "4": EMPLOYER.sentence, "3": MAYOR.sentence}
    assert judge.seen["answer"][0]["prediction"] == "Kel Dax and Zen Kol"
    assert values(t)["report"] == pytest.approx((1 + 0.5 + 0.25 + 1) / 4)


def test_a_rubric_that_a_question_brings_goes_before_its_facts(renderer: Renderer) -> None:
    facts = replace(PAIR, gold=replace(GOLD, rubric=()))
    judge = ScriptedJudge(decomposer_rubric=[1.0] * 3, answer=[1.0])
    episode(renderer, judge=judge, question=facts)
    assert [inputs["item"] for inputs in judge.seen["decomposer.rubric"]] == [fact.sentence for fact in (MENTOR, EMPLOYER, MAYOR)]
    bare = replace(PAIR, gold=Gold(("Kel Dax and Zen Kol",)))
    judge = ScriptedJudge(answer=[1.0])
    t, _, _ = episode(renderer, judge=judge, question=bare)
    assert values(t)["report"] == 1.0  # the answer alone


def test_what_the_judge_leaves_open_is_never_zero(renderer: Renderer) -> None:
    judge = ScriptedJudge(decomposer_rubric=[1.0, None], answer=[])
    t, _, _ = episode(renderer, judge=judge)
    found = values(t)
    assert (found["report"], found["answerer"]) == (None, None)
    assert found["answerer.execution"] is not None
    assert [unit.tag for unit in decomposer().credit([t])] == ["planner"]
    method = decomposer(weights=Weights(judge=0.0))
    t, _, _ = episode(renderer, judge=ScriptedJudge(decomposer_rubric=[None], answer=[]), method=method)
    assert values(t)["answerer"] is not None  # it does not count there
    assert method.judged == ()


def test_a_question_with_nothing_to_be_held_to_is_unscored(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, judge=LexicalJudge(), question=replace(PAIR, gold=Gold(())), method=decomposer())
    assert (values(t)["planner"], values(t)["report"], values(t)["answerer"]) == (None, None, None)
    assert values(t)["graph.nodes"] == 6


def test_the_answerer_is_asked_nothing_where_it_is_silent(renderer: Renderer) -> None:
    """The planner's stage and the one of plans: neither the answerer nor the judge."""
    for stage in ("planner", "plans"):
        method = decomposer()
        cast = method.in_stage(find(method.schedule(), stage))
        judge = ScriptedJudge()
        t, engine, library = episode(renderer, judge=judge, method=cast)
        assert engine.speakers == ["planner", "reviser"]
        assert (t.status, t.answer, dict(judge.seen)) == ("ok", None, {})
        assert library.calls == [[MENTOR.query, MAYOR.query], [EMPLOYER.query]]
        whole, _, _ = episode(renderer, judge=LexicalJudge())
        assert values(t)["planner"] == values(whole)["planner"]
        assert {reward.name.partition(".")[0] for reward in t.rewards} == {"planner", "graph"}
        t, _, _ = episode(renderer, {**SCRIPT, "reviser": ["no"]}, judge, cast)
        assert values(t) == {"planner": 0.0, "graph.invalid": 1.0}


def test_an_encoder_that_gives_too_few_vectors_is_named(renderer: Renderer) -> None:
    from rolecast.methods.decomposer.scoring import vectors_of

    async def short(texts: Sequence[str]) -> Any:
        return (await Library().embed(texts))[:-1]

    with pytest.raises(InputError, match="1 vectors for 2 texts"):
        asyncio.run(vectors_of(["a", "b", "a"], short))


# Long-form


def test_where_a_report_alone_is_asked_for(renderer: Renderer) -> None:
    method = decomposer(short_answer=False)
    script = {**SCRIPT, "writer": [f"<node id=6> {REPORT}</node>"]}
    t, _, _ = episode(renderer, script, LexicalJudge(), method, LONG)
    assert (t.answer, t.status, values(t)["report"]) == (REPORT, "ok", 1.0)
    assert method.roles["writer"].stop == ("</node>",)
    assert method.measured == ("reward:report",)
    assert decomposer().measured == ("qa", "reward:report")


# Prepared plans


def planning() -> Decomposer:
    """As it is played in the stage of plans."""
    return decomposer().in_stage(find(decomposer().schedule(), "plans"))


def prepared(renderer: Renderer) -> dict[str, Any]:
    cast = planning()
    t, _, _ = episode(renderer, judge=LexicalJudge(), method=cast, member=3)
    kept = cast.prepare(t)
    assert kept is not None
    given: dict[str, Any] = json.loads(json.dumps(kept))
    return given


def test_a_prepared_plan_is_answered_as_if_it_were_live_without_any_search(renderer: Renderer) -> None:
    live, _, _ = episode(renderer, judge=LexicalJudge())
    given = prepared(renderer)
    assert (given["sample"], given["seed"]) == (3, 0)
    t, engine, library = episode(
        renderer, {k: SCRIPT[k] for k in ("answerer", "writer")}, LexicalJudge(), question=replace(PAIR, given=given)
    )
    assert engine.speakers == ["answerer", "writer"]
    assert (library.calls, library.fetched, t.searches) == ([], [], 0)
    for role in ("answerer", "writer"):
        assert [prompt_of(thread) for thread in t.threads_of(role)] == [prompt_of(thread) for thread in live.threads_of(role)]
    assert {name: values(t)[name] for name in ("answerer", "report")} == {name: values(live)[name] for name in ("answerer", "report")}
    assert "planner" not in values(t)
    assert [unit.tag for unit in decomposer().credit([t])] == ["answerer"]


@pytest.mark.parametrize("stage", ["planner", "plans"])
def test_linear_plans_are_made_and_scored_without_their_report(renderer: Renderer, stage: str) -> None:
    """The answerer has nothing to say of them in any stage; that its stage comes later shows by the writer."""
    cast = decomposer(structure="linear").in_stage(find(decomposer(structure="linear").schedule(), stage))
    linear = f"<graph> search {MENTOR.query}; search {EMPLOYER.query}; search {MAYOR.query}; answer 1 2 3</graph>"
    t, engine, _ = episode(renderer, {"planner": [linear], "reviser": [f"{linear}<fetch></fetch>"]}, LexicalJudge(), cast)
    assert engine.speakers == ["planner", "reviser"]
    found = values(t)
    assert found["planner"] is not None
    assert not [name for name in found if name.startswith(("report", "answerer"))]
    kept = cast.prepare(t)
    assert kept is not None
    assert kept["sample"] == t.member  # a plan, and not the turns of a whole episode


def test_nothing_of_the_gold_is_prepared(renderer: Renderer) -> None:
    assert "Kel Dax and Zen Kol" not in json.dumps(prepared(renderer))


def test_what_is_no_plan_is_not_prepared(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "reviser": ["no"]}, LexicalJudge())
    assert planning().prepare(t) is None
    t, _, _ = episode(renderer, max_context=20)
    assert (t.status, planning().prepare(t)) == ("length", None)


def test_a_first_graph_that_was_mended_is_prepared_all_the_same(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "planner": ["no"]}, method=planning())
    assert planning().prepare(t) is not None


def test_a_cold_start_keeps_what_passes_validator_and_parser(renderer: Renderer) -> None:
    """3.4.1: an endpoint plays every role, and SFT learns the turns of episodes in which all could be read."""
    method = decomposer(cold_start="gpt")
    teacher, sft, *others = method.schedule()
    assert (teacher.name, teacher.kind, teacher.start, teacher.silent) == ("teacher", "rollout", "", ())
    assert set(teacher.slots.values()) == {"external:gpt"}
    assert set(teacher.slots) == set(method.roles)
    assert replace(sft, data="train") == decomposer().schedule()[0]
    assert sft.data == "teacher"
    assert others == list(decomposer().schedule()[1:])
    make_method(method.config)
    cast = method.in_stage(teacher)
    t, engine, _ = episode(renderer, judge=LexicalJudge(), method=cast)
    assert {request.slot for request in engine.requests} == {"external:gpt"}
    kept = cast.prepare(t)
    assert kept is not None
    assert [turn["role"] for turn in kept["turns"]] == ["planner", "reviser", "answerer", "writer"]
    for broken in ({"planner": ["no"]}, {"reviser": ["no"]}, {"answerer": ["no"]}, {"writer": ["no"]}):
        t, _, _ = episode(renderer, {**SCRIPT, **broken}, LexicalJudge(), cast)
        assert cast.prepare(t) is None


def test_a_fetched_page_is_prepared_whole(renderer: Renderer) -> None:
    t, _ = fetching(renderer, "1")
    kept = planning().prepare(t)
    assert kept is not None
    assert kept["sources"][0]["text"] == PAGES["long"]


# Credit and stages


def trajectory(member: int, status: str = "ok", **rewards: float | None) -> Trajectory:
    t = Trajectory(f"g.{member}", PAIR, "g", member, "decomposer", 0, status=status)  # type: ignore[arg-type]
    for role, tokens in (("planner", 3), ("reviser", 5), ("answerer", 2), ("writer", 4)):
        id = f"{t.id}/{role}.0"
        t.threads.append(Thread(id, role, "x", turns=[Action(f"{id}#0", (1,) * tokens, (0.0,) * tokens, "v", "", "stop")]))
    t.rewards = [Reward(name, t.id, value) for name, value in rewards.items()]
    return t


def test_each_part_is_credited_for_its_own_reward_over_all_of_its_turns() -> None:
    group = [trajectory(0, planner=0.2, answerer=0.9, report=0.5), trajectory(1, planner=0.6, answerer=0.1, report=0.7)]
    units = decomposer().credit(group)
    assert [(unit.objective, unit.reward, unit.baseline, unit.rollout) for unit in units] == [
        ("planner", 0.2, "g:planner", "g.0"), ("answerer", 0.9, "g:answerer", "g.0"),
        ("planner", 0.6, "g:planner", "g.1"), ("answerer", 0.1, "g:answerer", "g.1"),
    ]  # fmt: skip
    assert units[0].actions == ("g.0/planner.0#0", "g.0/reviser.0#0")
    assert units[1].actions == ("g.0/answerer.0#0", "g.0/writer.0#0")
    assert group_advantages(units, 1e-6) == pytest.approx(
        {"g.0:planner": -1, "g.1:planner": 1, "g.0:answerer": 1, "g.1:answerer": -1}, abs=1e-4
    )


def test_members_change_places_and_equal_rewards_say_nothing() -> None:
    one, two, three = (trajectory(m, planner=r, answerer=0.5) for m, r in enumerate((0.1, 0.5, 0.9)))
    straight, back = ({u.id: a for u in units for a in [group_advantages(units, 1e-6)[u.id]]} for units in (
        decomposer().credit([one, two, three]), decomposer().credit([three, one, two])
    ))  # fmt: skip
    assert straight == back
    assert all(value == 0 for id, value in straight.items() if id.endswith("answerer"))


def test_unscored_and_blameless_rollouts_have_no_unit() -> None:
    assert decomposer().credit([trajectory(0, planner=None, answerer=None)]) == []
    assert decomposer().credit([trajectory(0, "length", planner=0.4)]) == []
    assert decomposer().credit([trajectory(0, "error", planner=0.4)]) == []


def test_joint_rl_gives_both_the_final_reports_reward() -> None:
    method = decomposer(training="joint")
    units = method.credit([trajectory(0, planner=0.2, answerer=0.9, report=0.5)])
    assert {unit.tag: unit.reward for unit in units} == {"planner": 0.5, "answerer": 0.5}
    sft, joint = method.schedule()
    assert (joint.kind, joint.start, joint.task, joint.silent, joint.merges) == ("rl", "sft", "reward:report", (), ())
    assert joint.trained == ("answerer", "planner")
    staged = decomposer().schedule()
    assert sft == staged[0]
    own = {objective.name: objective for stage in staged if stage.kind == "rl" for objective in stage.objectives}
    assert {objective.name: objective for objective in joint.objectives} == own  # rates, KL and clip stay


def test_a_planner_without_a_plan_earns_nothing_in_joint_rl_either(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "reviser": ["no"]}, LexicalJudge(), decomposer(training="joint"))
    assert [(unit.tag, unit.reward) for unit in decomposer(training="joint").credit([t])] == [("planner", 0.0)]


def test_the_stages() -> None:
    sft, planner, plans, answerer = decomposer().schedule()
    assert [stage.name for stage in (sft, planner, plans, answerer)] == ["sft", "planner", "plans", "answerer"]
    assert (sft.merges, set(sft.slots.values()), set(sft.slots)) == (("shared",), {"shared"}, set(decomposer().roles))
    assert (planner.start, planner.merges, planner.task, planner.silent) == ("sft", ("planner",), "reward:planner", ("answerer", "writer"))
    assert (plans.kind, plans.start, plans.task, plans.silent) == ("rollout", "planner", "reward:planner", ("answerer", "writer"))
    assert (answerer.start, answerer.data, answerer.merges, answerer.task) == ("planner", "plans", (), "reward:answerer")
    assert {name: role.slot for name, role in decomposer().roles.items()} == {
        "planner": "planner", "reviser": "planner", "answerer": "answerer", "writer": "answerer",
    }  # fmt: skip


def test_the_loss_is_a_mean_over_a_rollouts_tokens_then_over_rollouts() -> None:
    """Eq. 16: a rollout of 8 action tokens and one of 2 weigh the same; k3 in the loss, over the same."""
    _, planner, _, answerer = decomposer(planner_kl=0.001, answerer_kl=0.005, clip=0.3).schedule()
    for stage, kl in ((planner, 0.001), (answerer, 0.005)):
        [objective] = stage.objectives
        assert objective.estimator == "group"
        assert objective.policy is not None
        assert objective.kl is not None
        assert (objective.policy.ratio, objective.policy.clip, objective.kl.coefficient, objective.kl.where) == (
            "token",
            (0.3, 0.3),
            kl,
            "loss",
        )
        assert objective.policy.over == objective.kl.over == (mean("rollout"), mean("group"), mean("batch"))
        units = [Unit("a", ("a1", "a2"), 0, "", group="g", rollout="a"), Unit("b", ("b1",), 0, "", group="g", rollout="b"),
                 Unit("c", ("c1",), 0, "", group="h", rollout="c")]  # fmt: skip
        weights = item_weights(units, {"a1": 3, "a2": 5, "b1": 2, "c1": 4}, objective.policy.over)
        assert weights == pytest.approx({"a": 1 / 8 / 2 / 2, "b": 1 / 2 / 2 / 2, "c": 1 / 4 / 2})
    assert decomposer(planner_kl=0.0).schedule()[1].objectives[0].kl is None


# Ablations and variants: each changes what it says and nothing else


def without(stages: Sequence[Stage], role: str) -> tuple[Stage, ...]:
    """The same stages of a team that has no such role."""
    return tuple(
        replace(
            stage,
            slots={name: slot for name, slot in stage.slots.items() if name != role},
            silent=tuple(name for name in stage.silent if name != role),
        )
        for stage in stages
    )


def test_one_turn_of_planning_executes_the_first_graph(renderer: Renderer) -> None:
    method = decomposer(turns=1)
    script: Mapping[str, Sequence[str]] = {**SCRIPT, "planner": [f"<graph> {PLAN}</graph>"], "reviser": []}
    t, engine, library = episode(renderer, script, LexicalJudge(), method)
    assert engine.speakers == ["planner", "answerer", "writer"]
    assert library.calls == [[MENTOR.query, EMPLOYER.query, MAYOR.query]]
    assert values(t)["report"] == (1 + 0.75 + 0.75 + 1) / 4  # two sentences cite numbers that are others' now
    assert len(method.credit([t])[0].actions) == 1
    t, _, _ = episode(renderer, {**script, "planner": ["no"]}, LexicalJudge(), method)
    assert (t.status, values(t)["planner"]) == ("format", 0.0)
    assert method.schedule() == without(decomposer().schedule(), "reviser")


def test_a_linear_plan_has_no_aggregates_and_no_terms_of_them(renderer: Renderer) -> None:
    method = decomposer(structure="linear")
    linear = f"search {MENTOR.query}; search {EMPLOYER.query}; search {MAYOR.query}; answer 1 2 3"
    script = {
        "planner": [f"<graph> {DRAFT}</graph>"], "reviser": [f"<graph> {linear}</graph><fetch></fetch>"], "answerer": [],
        "writer": [SCRIPT["writer"][0].replace("<node id=6>", "<node id=4>")],
    }  # fmt: skip
    t, engine, _ = episode(renderer, script, LexicalJudge(), method)
    assert engine.speakers == ["planner", "reviser", "writer"]
    assert t.actions[0].valid is False  # its first graph had aggregates
    found = values(t)
    terms = 0.4 * found["planner.coverage"] + 0.3 * (0.7 * found["planner.recall"] + 0.3 * found["planner.distinctness"])  # type: ignore[operator]
    assert found["planner"] == pytest.approx(terms)
    assert found["answerer"] == pytest.approx(0.5 * (0.8 * found["answerer.judge"] + 0.2 * 0))  # type: ignore[operator]
    t, _, _ = episode(renderer, {**script, "reviser": [f"<graph> {PLAN}</graph><fetch></fetch>"]}, LexicalJudge(), method)
    assert values(t)["planner"] == 0.0
    assert method.schedule() == without(decomposer().schedule(), "answerer")


def test_a_tree_joins_nothing_below_the_answer(renderer: Renderer) -> None:
    method = decomposer(structure="tree")
    t, _, _ = episode(renderer, judge=LexicalJudge(), method=method)
    assert values(t)["planner"] == 0.0  # the plan's first aggregate joins two searches
    tree = f"search {MENTOR.query}; search {MAYOR.query}; join 1; join 2; answer 3 4"
    script = {**SCRIPT, "reviser": [f"<graph> {tree}</graph><fetch></fetch>"],
              "answerer": [f"<nodes><node id=3> {M}</node><node id=4> {Y}</node></nodes>"],
              "writer": [SCRIPT["writer"][0].replace("<node id=6>", "<node id=5>")]}  # fmt: skip
    [one, two] = [values(episode(renderer, script, LexicalJudge(), m)[0]) for m in (method, decomposer())]
    assert one == two  # a tree is scored as any graph
    assert method.schedule() == decomposer().schedule()


def test_an_external_answerer_is_played_and_not_trained(renderer: Renderer) -> None:
    method = decomposer(external="gpt")
    assert {name: role.slot for name, role in method.roles.items()} == {
        "planner": "planner", "reviser": "planner", "answerer": "external:gpt", "writer": "external:gpt",
    }  # fmt: skip
    sft, planner = method.schedule()
    assert set(sft.slots) == {"planner", "reviser"}
    assert planner == decomposer().schedule()[1]
    assert method.judged == ()
    t, engine, _ = episode(renderer, judge=LexicalJudge(), method=method)
    assert [request.slot for request in engine.requests] == ["planner", "planner", "external:gpt", "external:gpt"]
    whole, _, _ = episode(renderer, judge=LexicalJudge())
    assert values(t) == values(whole)
    [_, joint] = decomposer(external="gpt", training="joint").schedule()
    assert joint.trained == ("planner",)
    with pytest.raises(ValidationError):
        DecomposerConfig(external="http://secret@host")


@pytest.mark.parametrize(
    "options", [{}, {"training": "joint"}, {"external": "x"}, {"external": "x", "training": "joint"}, {"structure": "linear"}]
)
def test_every_schedule_is_sound(options: dict[str, Any]) -> None:
    make_method(DecomposerConfig(**options))


def test_whose_verdicts_count() -> None:
    assert decomposer().judged == KINDS
    assert decomposer(weights={"synthesis": 0.0}).judged == ()
    assert decomposer(weights={"judge": 0.0}, training="joint").judged == KINDS


# On QA data


def test_a_question_of_one_chain(renderer: Renderer) -> None:
    script = {
        "planner": [f"<graph> search {MENTOR.query}; join 1; answer 2</graph>"],
        "reviser": [f"<graph> search {MENTOR.query}; search {EMPLOYER.query}; join 1 2; answer 3</graph><fetch></fetch>"],
        "answerer": [f"<nodes><node id=3> {MENTOR.sentence}[1] {EMPLOYER.sentence}[3]</node></nodes>"],
        "writer": [f"<node id=4> {MENTOR.sentence}[1] {EMPLOYER.sentence}[3]</node><answer> Kel Dax</answer>"],
    }
    t, _, _ = episode(renderer, script, LexicalJudge(), question=TWO_HOPS)
    assert (t.answer, values(t)["report"]) == ("Kel Dax", 1.0)


def test_probes_there_are_none(renderer: Renderer) -> None:
    """So actions are the same in training, evaluation and serving."""
    for phase in ("train", "eval", "serve", PREPARE):
        method = decomposer()
        engine, library = ScriptedEngine(renderer, method, SCRIPT), Library(DOCUMENTS)
        t = Trajectory("g.0", PAIR, "g", 0, method.name, 0)
        env = Env(engine, library, renderer, t, 4096, phase=phase)
        assert asyncio.run(method.rollout(PAIR, env)) == "Kel Dax and Zen Kol"
        asyncio.run(method.probe(t, env.probe()))
        assert engine.speakers == ["planner", "reviser", "answerer", "writer"]


def test_given_state_of_another_method_is_none(renderer: Renderer) -> None:
    question = Question("q", PAIR.text, GOLD, given={"style": "short"})
    t, engine, _ = episode(renderer, question=question)
    assert engine.speakers[0] == "planner"
    assert t.status == "ok"
