"""Every formula of App. A.5 by hand. Texts are unit vectors in a plane, so that cosines are those of the angles between them."""

from __future__ import annotations

from itertools import permutations
from math import cos, radians

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.methods.decomposer.config import DecomposerConfig
from rolecast.methods.decomposer.graph import Graph, Node, check
from rolecast.methods.decomposer.rewards import (
    Vectors,
    Weights,
    answerer_reward,
    branch_texts,
    branches,
    breadth,
    connectivity,
    content_words,
    coverage,
    distinctness,
    execution,
    fields_of,
    judged_report,
    lexical,
    matching,
    node_score,
    planner_reward,
    planner_terms,
    queries_of,
    saturating,
    share_said,
    shifted_harmonic_mean,
    utilisation,
)
from rolecast.types import RubricItem

RUBRIC = (RubricItem("r0", 3.0), RubricItem("r90", 1.0))
# By their angles: the cosine of 60 degrees is .5, that of 90 and more counts as 0.
ANGLES = {
    "r0": 0, "r90": 90, "q60": 60, "q120": 120, "q0": 0, "p0": 0, "p90": 90, "p180": 180, "n30": 30, "n90": 90,
    "n30; p0": 0, "n90; p90": 60, "Zero.": 0, "Sixty.": 60, "Ninety.": 90,
}  # fmt: skip


def vectors(**angles: float) -> Vectors:
    table = {**ANGLES, **angles}
    rows = [[np.cos(np.radians(angle)), np.sin(np.radians(angle))] for angle in table.values()]
    return Vectors(list(table), np.array(rows, dtype=np.float32))


V = vectors()


def plan(nodes: list[Node], *edges: str) -> Graph:
    made = Graph(tuple(nodes), tuple((edge.split(">")[0], edge.split(">")[1]) for edge in edges))
    check(made)
    return made


# Two searches and two aggregates; s1 feeds both, a2 joins both.
SHARED = plan(
    [
        Node("s1", "search", "q60", ("p0",)), Node("s2", "search", "q120", ("q120",)),
        Node("a1", "aggregate", "n30", ("p0",)), Node("a2", "aggregate", "n90", ("p90",)), Node("e", "answer", "r0"),
    ],
    "s1>a1", "s1>a2", "s2>a2", "a1>e", "a2>e",
)  # fmt: skip


def test_cosines_below_zero_count_as_zero() -> None:
    assert V.cosine("r0", "q60") == pytest.approx(0.5)
    assert V.cosine("r0", "q120") == 0.0
    assert V.cosine("p0", "p180") == 0.0
    assert V.cosine("r0", "p0") == 1.0


def test_what_an_encoders_last_bits_say_does_not_count() -> None:
    """The same text twice, encoded in other company."""
    one, other = (Vectors(["a", "b"], np.array([[1, 0], [0.6 + noise, 0.8]], dtype=np.float32)) for noise in (0.0, 2e-7))
    assert one.cosine("a", "b") == other.cosine("a", "b")


@pytest.mark.parametrize(("count", "value"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 0.75), (4, 0.875)])
def test_diminishing_returns(count: int, value: float) -> None:
    assert saturating(count) == value


def test_rubric_coverage_is_the_weighted_mean_of_best_matches() -> None:
    """Eq. 18: r0 (weight 3) has its best match in p0 with 1, r90 (weight 1) in p90 with 1; the answer's brief r0 does not count."""
    assert fields_of(SHARED) == ["q60", "p0", "q120", "q120", "n30", "p0", "n90", "p90"]
    assert coverage(RUBRIC, fields_of(SHARED), V) == pytest.approx(1.0)
    assert coverage(RUBRIC, ["q60"], V) == pytest.approx((3 * 0.5 + 1 * cos(radians(30))) / 4, abs=1e-4)
    assert coverage(RUBRIC, ["q120", "p90"], V) == pytest.approx((3 * 0 + 1 * 1) / 4)
    assert coverage(RUBRIC, [], V) == 0.0
    assert coverage((RubricItem("r0", 0.0),), ["p0"], V) == 0.0


def test_search_recall_is_coverage_by_queries_alone() -> None:
    """Eq. 19: the queries q60 and q120; r0: cos 60, r90: cos 30."""
    assert queries_of(SHARED) == ["q60", "q120"]
    assert planner_terms(SHARED, RUBRIC, V)["recall"] == pytest.approx((3 * 0.5 + cos(radians(30))) / 4, abs=1e-4)


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        ([], 0.0),
        (["q0"], 0.0),  # below two there is nothing to be distinct from
        (["q0", "q60"], 0.5),
        (["q0", "q0"], 0.0),
        (["q0", "q120"], 1.0),
        (["q0", "q60", "q120"], 1 - (0.5 + 0.0 + 0.5) / 3),
    ],
)
def test_distinctness_is_one_minus_the_mean_cosine_of_pairs(texts: list[str], value: float) -> None:
    assert distinctness(texts, V) == pytest.approx(value, abs=1e-4)


def test_branches_are_counted_by_how_many_and_how_distinct_they_are() -> None:
    """Eq. 22: φ(2) = .5 times 1 − cos 60 of "n30; p0" and "n90; p90"."""
    assert branch_texts(SHARED) == ["n30; p0", "n90; p90"]
    assert branches(SHARED, V) == pytest.approx(0.5 * 0.5, abs=1e-4)
    one = plan([*SHARED.nodes], "s1>a1", "s1>a2", "s2>a2", "a1>a2", "a2>e")
    assert branches(one, V) == 0.0  # a1 feeds the answer through a2 alone


@pytest.mark.parametrize(
    ("edges", "shared", "joined"),
    [
        (("s1>a1", "s1>a2", "s2>a2", "a1>e", "a2>e"), 1 / 2, 1 / 2),
        (("s1>a1", "s2>a2", "a1>e", "a2>e"), 0.0, 0.0),
        (("s1>a1", "s2>a1", "s1>a2", "s2>a2", "a1>e", "a2>e"), 1.0, 1.0),
        (("s1>a1", "s1>e", "s2>a2", "a1>e", "a2>e"), 1 / 2, 0.0),  # two children of any type
        (("s1>a1", "s2>a2", "a1>a2", "a2>e"), 0.0, 1 / 2),  # a parent may be a branch
    ],
)
def test_connectivity_is_what_is_shared_and_what_is_joined(edges: tuple[str, ...], shared: float, joined: float) -> None:
    """Eq. 23: φ(2) times the mean of both shares."""
    assert connectivity(plan([*SHARED.nodes], *edges)) == pytest.approx(0.5 * (shared + joined) / 2)


def test_with_one_aggregate_or_none_nothing_crosses_branches() -> None:
    s1, s2, a1, _, e = SHARED.nodes
    assert connectivity(plan([s1, s2, a1, e], "s1>a1", "s2>a1", "a1>e")) == 0.0
    assert connectivity(plan([s1, s2, e], "s1>e", "s2>e")) == 0.0


def test_breadth_counts_searches() -> None:
    assert breadth(SHARED) == 0.5


def test_the_planners_reward_by_hand() -> None:
    """Eq. 17-24 on the shared plan, with weights that keep every term apart."""
    terms = planner_terms(SHARED, RUBRIC, V)
    recall = (3 * 0.5 + cos(radians(30))) / 4
    assert terms == pytest.approx(
        {"coverage": 1.0, "recall": recall, "distinctness": 0.5, "branches": 0.25, "connectivity": 0.25, "breadth": 0.5}, abs=1e-4
    )
    w = Weights()
    expressive = 0.4 * 0.25 + 0.3 * 0.25 + 0.3 * 0.5
    assert planner_reward(terms, w) == pytest.approx(0.4 * 1 + 0.3 * (0.7 * recall + 0.3 * 0.5) + 0.3 * expressive, abs=1e-4)


@pytest.mark.parametrize("term", ["coverage", "search", "expressiveness", "recall", "distinctness", "branches", "connectivity", "breadth"])
def test_a_planner_term_left_out_leaves_the_others_as_they_are(term: str) -> None:
    """A.7: the reward falls by the term's own part, no more and no less."""
    terms = planner_terms(SHARED, RUBRIC, V)
    w, without = Weights(), Weights(**{term: 0.0})  # type: ignore[arg-type]
    assert without.model_dump() == {**w.model_dump(), term: 0.0}
    search = 0.7 * terms["recall"] + 0.3 * terms["distinctness"]
    expressive = 0.4 * terms["branches"] + 0.3 * terms["connectivity"] + 0.3 * terms["breadth"]
    own = {
        "coverage": 0.4 * terms["coverage"], "search": 0.3 * search, "expressiveness": 0.3 * expressive,
        "recall": 0.3 * 0.7 * terms["recall"], "distinctness": 0.3 * 0.3 * terms["distinctness"],
        "branches": 0.3 * 0.4 * terms["branches"], "connectivity": 0.3 * 0.3 * terms["connectivity"], "breadth": 0.3 * 0.3 * terms["breadth"],
    }[term]  # fmt: skip
    assert own > 0.005
    assert planner_reward(terms, w) - planner_reward(terms, without) == pytest.approx(own)


def test_the_default_weights_of_each_sum_add_up_to_one() -> None:
    w = Weights()
    for parts in (
        (w.coverage, w.search, w.expressiveness), (w.recall, w.distinctness), (w.branches, w.connectivity, w.breadth),
        (w.execution, w.synthesis), (w.matching, w.lexical), (w.judge, w.utilisation),
    ):  # fmt: skip
        assert sum(parts) == pytest.approx(1)


def test_a_linear_plan_is_not_scored_for_what_it_cannot_have() -> None:
    assert DecomposerConfig(structure="linear").counted == Weights(expressiveness=0.0, execution=0.0)
    for structure in ("dag", "tree"):
        assert DecomposerConfig(structure=structure).counted == Weights()  # type: ignore[arg-type]


# The answerer


@pytest.mark.parametrize(
    ("points", "text", "value"),
    [
        (["p0"], "Zero. Ninety.", 1.0),
        (["p0"], "Sixty.[1]", 0.5),
        (["p0"], "", 0.0),
        ([], "Zero.", 0.0),
        # One sentence serves one point: p0 takes "Zero.", p90 is left with "Sixty." of which its cosine is cos 30.
        (["p0", "p90"], "Zero. Sixty.", (1 + cos(radians(30))) / 2),
        (["p0", "q0"], "Zero.", 1 / 2),
        # The best pair goes first: "Sixty." goes to q60 with 1, though it would be p0's best.
        (["p0", "q60"], "Sixty. Ninety.", (1 + 0.0) / 2),
        (["p180"], "Zero.", 0.0),  # a clamped match adds nothing
    ],
)
def test_key_points_are_matched_one_to_one_and_greedily(points: list[str], text: str, value: float) -> None:
    """Eq. 27."""
    assert matching(points, text, V) == pytest.approx(value, abs=1e-4)


def test_content_words_are_normalised_and_without_citations() -> None:
    assert content_words("The mentor of Brol-Tan is Vrek Stom.[3] [4, 5]") == {"mentor", "broltan", "vrek", "stom"}
    assert content_words("Who is it? [1]") == frozenset()


@pytest.mark.parametrize(
    ("wanted", "said", "share"),
    [
        ("mentor of Brol Tan", "The mentor of Brol Tan is Vrek Stom.[1]", 1.0),
        ("mentor of Brol Tan", "Brol Vim has no mentor.", 2 / 3),
        ("mentor of Brol Tan", "", 0.0),
        ("is it?", "no", 1.0),
        ("in 3", "[3]", 0.0),  # a citation says nothing
    ],
)
def test_the_share_of_words_that_is_said(wanted: str, said: str, share: float) -> None:
    assert share_said(wanted, said) == pytest.approx(share)


def test_lexical_recall_is_the_mean_over_key_points() -> None:
    """Eq. 28: 1 and 1/3."""
    assert lexical(["mentor Brol Tan", "mayor Kel Dax"], "The mentor of Brol Tan is Kel Vim.") == pytest.approx((1 + 1 / 3) / 2)
    assert lexical([], "x") == 0.0


def test_a_nodes_score_weighs_both() -> None:
    """Eq. 26: match cos 60, words 0."""
    w = Weights(matching=0.6, lexical=0.4)
    assert node_score(["p0"], "Sixty.", V, w) == pytest.approx(0.6 * 0.5)
    assert node_score(["p0"], "p0 Sixty.", vectors(**{"p0 Sixty.": 60.0}), w) == pytest.approx(0.6 * 0.5 + 0.4)
    assert node_score(["is"], "", V, w) == 0.0


@pytest.mark.parametrize(
    ("scores", "value"),
    [
        ([], 0.0),
        ([0.0], 0.0),
        ([0.0, 0.0, 0.0], 0.0),
        ([1.0, 1.0], 1.0),
        ([0.5], 0.5),
        ([0.0, 1.0], 2 / (1 / 0.1 + 1 / 1.1) - 0.1),  # .0833: sensitive to the weak branch, and not 0
    ],
)
def test_the_shifted_harmonic_mean(scores: list[float], value: float) -> None:
    """Eq. 29."""
    assert shifted_harmonic_mean(scores) == pytest.approx(value, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_shifted_harmonic_mean_lies_between_the_worst_and_the_mean(scores: list[float]) -> None:
    value = shifted_harmonic_mean(scores)
    assert min(scores) - 1e-9 <= value <= sum(scores) / len(scores) + 1e-9
    assert all(shifted_harmonic_mean(order) == pytest.approx(value) for order in list(permutations(scores))[:6])


def test_a_missing_node_scores_zero_among_the_others() -> None:
    full = {"a1": "Zero. p0", "a2": "Ninety. p90"}
    v = vectors(**{"Zero. p0": 0.0, "p0": 0.0, "p90": 90.0})
    w = Weights(matching=1.0, lexical=0.0)
    assert execution(SHARED, full, v, w) == pytest.approx(1.0)
    assert execution(SHARED, {"a1": full["a1"]}, v, w) == pytest.approx(2 / (1 / 0.1 + 1 / 1.1) - 0.1)
    assert execution(SHARED, {}, v, w) == pytest.approx(0.0)


def test_utilisation_is_the_mean_share_of_each_branch() -> None:
    """Eq. 31: 1 and 1/3; a branch that says nothing does not count."""
    branches = ["The mentor is Vrek Stom.[1]", "The mayor is Kel Dax."]
    final = "The mentor is Vrek Stom, and Kel."
    assert utilisation(branches, final) == pytest.approx((1 + 1 / 3) / 2)
    assert utilisation([*branches, "", "[4]"], final) == utilisation(branches, final)
    assert utilisation([], final) == utilisation([""], final) == 0.0


def test_the_answerers_reward_by_hand() -> None:
    """Eq. 25 and 30."""
    w = Weights()
    assert answerer_reward(0.6, 0.75, 0.5, w) == pytest.approx(0.5 * 0.6 + 0.5 * (0.8 * 0.75 + 0.2 * 0.5))
    assert answerer_reward(0.6, 0.0, 0.0, w) == pytest.approx(0.3)  # what is left after a fault


@pytest.mark.parametrize(("term", "own"), [("execution", 0.5 * 0.6), ("judge", 0.5 * 0.8 * 0.75), ("utilisation", 0.5 * 0.2 * 0.5)])
def test_an_answerer_term_left_out_leaves_the_others_as_they_are(term: str, own: float) -> None:
    full, less = (answerer_reward(0.6, 0.75, 0.5, w) for w in (Weights(), Weights(**{term: 0.0})))  # type: ignore[arg-type]
    assert full - less == pytest.approx(own)


@pytest.mark.parametrize(("term", "left"), [("matching", 0.5 * 1.0), ("lexical", 0.5 * 0.5)])
def test_a_part_of_a_nodes_score_left_out(term: str, left: float) -> None:
    w = Weights(**{term: 0.0})  # type: ignore[arg-type]
    assert node_score(["p0"], "p0 Sixty.", vectors(**{"p0 Sixty.": 60.0}), w) == pytest.approx(left)


@pytest.mark.parametrize(("levels", "score"), [((1.0, 0.0), 1.0), ((1.0, 1.0), 0.4), ((0.0, 1.0), 0.0), ((0.5, 0.5), 0.2)])
def test_what_should_not_be_said_takes_away(levels: tuple[float, float], score: float) -> None:
    """5 points to win and 3 to lose, as in HealthBench: (5 · met − 3 · met) / 5, and not below 0."""
    rubric = (RubricItem("r0", 5.0), RubricItem("r90", -3.0))
    assert judged_report(levels, rubric, None) == pytest.approx(score)
    assert coverage(rubric, ["p0"], V) == pytest.approx(1.0), "nobody plans for it"
    assert coverage(rubric[1:], ["p0"], V) == 0.0


@pytest.mark.parametrize(
    ("levels", "answer", "score"),
    [
        ([1.0, 0.25], None, (3 * 1.0 + 1 * 0.25) / 4),
        ([1.0, 0.25], 1.0, (3 * 1.0 + 1 * 0.25 + 1) / 5),
        ([1.0, 0.25], 0.0, (3 * 1.0 + 1 * 0.25) / 5),
    ],
)
def test_a_report_has_the_weighted_mean_of_its_levels(levels: list[float], answer: float | None, score: float) -> None:
    assert judged_report(levels, RUBRIC, answer) == pytest.approx(score)
    assert judged_report([], (), answer) == (answer or 0.0)
