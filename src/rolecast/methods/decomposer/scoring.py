"""From an episode to its rewards: what the encoder and the judge are asked, and the figures that diagnostics are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolecast.errors import InputError
from rolecast.methods.decomposer.form import Final, citations
from rolecast.methods.decomposer.graph import Graph
from rolecast.methods.decomposer.judge import RUBRIC
from rolecast.methods.decomposer.rewards import (
    Vectors,
    Weights,
    answerer_reward,
    branch_texts,
    execution,
    fields_of,
    judged_report,
    planner_reward,
    planner_terms,
    sentences_of,
    utilisation,
)
from rolecast.methods.decomposer.state import DecomposerState
from rolecast.ports import Embed, Judge
from rolecast.types import Gold, Reward, RubricItem, Trajectory

EDGES = ("search-aggregate", "aggregate-aggregate", "search-answer", "aggregate-answer")


def facts_of(gold: Gold) -> tuple[RubricItem, ...]:
    """The rubric, or one item for each fact of the gold chain where there is none."""
    return gold.rubric or tuple(RubricItem(hop.fact) for hop in gold.chain if hop.object)


def rubric_of(gold: Gold) -> tuple[RubricItem, ...]:
    """What a plan should make room for: the rubric, and the answer where there is a short one."""
    return (*facts_of(gold), *(RubricItem(answer) for answer in gold.answers[:1]))


async def vectors_of(texts: Sequence[str], embed: Embed) -> Vectors:
    unique = list(dict.fromkeys(texts))
    rows = await embed(unique)
    if len(rows) != len(unique):
        raise InputError(f"the encoder gave {len(rows)} vectors for {len(unique)} texts; see the retriever's encoder")
    return Vectors(unique, rows)


async def score_plan(t: Trajectory, plan: Graph | None, weights: Weights, embed: Embed) -> list[Reward]:
    """`planner` with its terms, and the graph's figures. A graph that is no plan earns 0 (eq. 17)."""
    if plan is None:
        return [Reward("planner", t.id, 0.0, "validator", "the graph is no plan"), Reward("graph.invalid", t.id, 1.0)]
    rubric = rubric_of(t.question.gold)
    if not rubric:
        reason = "the question has neither rubric nor gold facts nor answer"
        return [Reward("planner", t.id, None, "rubric", reason), Reward("graph.invalid", t.id, 0.0), *_figures(t, plan)]
    texts = [*(item.text for item in rubric), *fields_of(plan), *branch_texts(plan)]
    terms = planner_terms(plan, rubric, await vectors_of(texts, embed))
    return [
        Reward("planner", t.id, planner_reward(terms, weights), "graph"),
        *(Reward(f"planner.{name}", t.id, value, "graph") for name, value in terms.items()),
        Reward("graph.invalid", t.id, 0.0),
        *_figures(t, plan),
    ]


def _figures(t: Trajectory, plan: Graph) -> list[Reward]:
    """Sizes of the graph and its edges by type (A.6)."""
    edges = plan.edge_types()
    counts = {
        "graph.nodes": len(plan.nodes), "graph.searches": len(plan.searches), "graph.aggregates": len(plan.aggregates),
        "graph.edges": edges.total(), **{f"graph.{type}": edges[type] for type in EDGES},
    }  # fmt: skip
    return [Reward(name, t.id, float(count)) for name, count in counts.items()]


@dataclass(frozen=True, slots=True)
class Judged:
    """`score`: of the whole report in [0, 1]; None where the judge left an item unscored."""

    score: float | None
    reason: str = ""


async def judge_report(t: Trajectory, final: Final, cited: Mapping[str, str], judge: Judge) -> Judged:
    """Each item of the rubric on five levels, and the short answer where there is one."""
    gold, question = t.question.gold, t.question.text
    levels = []
    for item in facts_of(gold):
        inputs = {"question": question, "gold": gold, "item": item.text, "report": final.report, "sources": cited}
        verdict = await judge.judge(RUBRIC.name, inputs)
        if verdict.score is None:
            return Judged(None, verdict.reason)
        levels.append(verdict.score)
    answer = None
    if gold.answers and final.answer is not None:
        verdict = await judge.judge("answer", {"question": question, "prediction": final.answer, "gold": gold})
        if verdict.score is None:
            return Judged(None, verdict.reason)
        answer = verdict.score
    if not levels and answer is None:
        return Judged(None, "the question has neither rubric nor gold facts nor answer")
    return Judged(judged_report(levels, facts_of(gold), answer))


async def score_report(
    t: Trajectory, state: DecomposerState, final: Final | None, weights: Weights, judge: Judge, embed: Embed
) -> list[Reward]:
    """`answerer` with its terms, and `report`. Without a final report what was executed still counts, and the report scores 0."""
    assert state.plan is not None
    points = [point for node in state.plan.aggregates for point in node.key_points]
    said = [sentence for report in state.reports.values() for sentence in sentences_of(report)]
    executed = execution(state.plan, state.reports, await vectors_of([*points, *said], embed), weights) if weights.execution else 0.0
    if final is None:
        faulty = answerer_reward(executed, 0.0, 0.0, weights)
        return [
            Reward("answerer", t.id, faulty, "execution", "a reply could not be read"), Reward("answerer.execution", t.id, executed),
            Reward("report", t.id, 0.0, "protocol", "there is no report"),
        ]  # fmt: skip
    judged = await judge_report(t, final, cited_sources(state, final), judge)
    used = utilisation(list(state.reports.values()), final.report)
    counted = 0.0 if judged.score is None and not weights.judge * weights.synthesis else judged.score
    total = None if counted is None else answerer_reward(executed, counted, used, weights)
    return [
        Reward("answerer", t.id, total, "execution and synthesis", judged.reason),
        Reward("answerer.execution", t.id, executed),
        Reward("answerer.judge", t.id, judged.score, "judge", judged.reason),
        Reward("answerer.utilisation", t.id, used),
        Reward("report", t.id, judged.score, "judge", judged.reason),
        Reward("answer.words", t.id, float(len(final.report.split()))),
    ]


def cited_sources(state: DecomposerState, final: Final) -> dict[str, str]:
    """Texts of the passages that the report cites, by number; numbers of none are left out."""
    return {str(number): state.sources[number - 1].text for number in citations(final.report) if 0 < number <= len(state.sources)}
