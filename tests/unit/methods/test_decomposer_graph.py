"""Plans: the validator rule by rule, waves, what may be left out, and both ways to write one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.methods.decomposer.form import (
    Final,
    PlanForm,
    as_json,
    citations,
    cited_sentences,
    from_json,
    node_block,
    read_blocks,
    read_final,
    read_numbers,
    read_reports,
    uncited,
)
from rolecast.methods.decomposer.graph import Graph, Node, PlanFault, Structure, check

S1, S2 = Node("s1", "search", "mentor of Brol Tan"), Node("s2", "search", "mayor of Kel Dax", ("who rules",))
A1, A2 = Node("a1", "aggregate", "the mentor", ("name",)), Node("a2", "aggregate", "", ())
END = Node("end", "answer", "say both")
WHOLE = Graph((S1, S2, A1, A2, END), (("s1", "a1"), ("s2", "a2"), ("a1", "a2"), ("a2", "end"), ("a1", "end")))


def graph(nodes: str, edges: str = "") -> Graph:
    """Nodes by their first letter: s, a, e (the answer); edges as "s1>a1"."""
    types = {"s": "search", "a": "aggregate", "e": "answer", "x": "tool"}
    made = tuple(Node(id, types[id[0]], f"text of {id}") for id in nodes.split())
    return Graph(made, tuple((edge.split(">")[0], edge.split(">")[1]) for edge in edges.split()))


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        ("s1 s2 a1 a2 e", "s1>a1 s2>a2 a1>a2 a2>e a1>e"),
        ("s1 e", "s1>e"),
        ("e", ""),
        ("s1 a1 e", "s1>a1 s1>e a1>e"),
        ("s1 a1 a2 e", "s1>a1 a1>e s1>a2"),  # an aggregate that nothing uses is connected all the same
        ("s1 s2 a1 e", "s1>a1 s2>a1 s1>a1 a1>e"),  # an edge said twice
    ],
)
def test_what_is_a_plan(nodes: str, edges: str) -> None:
    check(graph(nodes, edges))


@pytest.mark.parametrize(
    ("nodes", "edges", "reason"),
    [
        ("s1 s1 e", "s1>e", "node 's1' is there twice"),
        ("x1 e", "x1>e", "node 'x1' is of type 'tool'; there are search, aggregate, answer"),
        ("s1 e", "s1>e s2>e", "an edge names 's2', which is no node"),
        ("s1 e", "s1>e s1>a7", "an edge names 'a7', which is no node"),
        ("s1 a1", "s1>a1", "there are 0 answer nodes"),
        ("s1 e1 e2", "s1>e1 s1>e2", "there are 2 answer nodes"),
        ("s1 a1 e", "s1>e e>a1", "the answer node 'e' has an outgoing edge"),
        ("s1 a1 a2 e", "s1>a1 a1>a2 a2>a1 a2>e", "the graph has a cycle"),
        ("s1 a1 e", "s1>a1 a1>a1 a1>e", "the graph has a cycle"),
        ("s1 s2 e", "s1>e", "node 's2' is not connected to 's1'"),
        ("s1 a1 s2 a2 e", "s1>a1 a1>e s2>a2", "node 's2' is not connected to 's1'"),
    ],
)
def test_what_is_no_plan(nodes: str, edges: str, reason: str) -> None:
    with pytest.raises(PlanFault, match=reason):
        check(graph(nodes, edges))


def test_a_search_needs_a_query() -> None:
    with pytest.raises(PlanFault, match="search 's1' has no query"):
        check(Graph((Node("s1", "search", " "), END), (("s1", "end"),)))


@pytest.mark.parametrize(
    ("structure", "nodes", "edges", "reason"),
    [
        ("linear", "s1 s2 e", "s1>e s2>e", None),
        ("linear", "s1 a1 e", "s1>a1 a1>e", "a linear plan has no aggregates"),
        ("tree", "s1 a1 a2 e", "s1>a1 a1>a2 a2>e", None),
        ("tree", "s1 s2 a1 a2 e", "s1>a1 s2>a2 a1>e a2>e", None),  # the answer joins branches
        ("tree", "s1 s2 a1 e", "s1>a1 s2>a1 a1>e", "aggregate 'a1' has more than one parent"),
        ("dag", "s1 s2 a1 e", "s1>a1 s2>a1 a1>e", None),
    ],
)
def test_weaker_structures_allow_less(structure: Structure, nodes: str, edges: str, reason: str | None) -> None:
    check(graph(nodes, edges))
    if reason is None:
        check(graph(nodes, edges), structure)
    else:
        with pytest.raises(PlanFault, match=reason):
            check(graph(nodes, edges), structure)


@pytest.mark.parametrize(
    ("nodes", "edges", "waves"),
    [
        ("s1 e", "s1>e", []),
        ("s1 a1 a2 e", "s1>a1 s1>a2 a1>e a2>e", [["a1", "a2"]]),
        ("s1 a4 a3 a2 a1 e", "s1>a1 a1>a2 a1>a3 a2>a4 s1>a4 a4>e a3>e", [["a1"], ["a3", "a2"], ["a4"]]),
        ("a1 e", "a1>e", [["a1"]]),  # without inputs it is ready at once
    ],
)
def test_a_wave_holds_all_aggregates_whose_inputs_are_there(nodes: str, edges: str, waves: list[list[str]]) -> None:
    assert [[node.id for node in wave] for wave in graph(nodes, edges).waves()] == waves


def test_edges_are_counted_by_type() -> None:
    assert WHOLE.edge_types() == {"search-aggregate": 2, "aggregate-aggregate": 1, "aggregate-answer": 2}


def test_what_a_plan_leaves_out_follows_from_the_rest() -> None:
    nodes = Graph((S1, S2, A1, A2, Node("end", "answer", "")), WHOLE.edges).completed("Who?").nodes
    assert [(node.text, node.key_points) for node in nodes] == [
        ("mentor of Brol Tan", ("mentor of Brol Tan",)),
        ("mayor of Kel Dax", ("who rules",)),
        ("the mentor", ("name",)),
        ("who rules; name", ("who rules", "name")),  # its parents', in the order of its edges
        ("Who?", ()),
    ]


# Forms

JSON: dict[str, Any] = {
    "nodes": [
        {"id": "s1", "type": "search", "query": "mentor of Brol Tan", "key_points": ["the mentor"]},
        {"id": "a1", "type": "aggregate", "need": "who it is", "key_points": ["name"]},
        {"id": "end", "type": "answer", "brief": "say it"},
    ],
    "edges": [["s1", "a1"], ["a1", "end"]],
}


def changed(**changes: Any) -> str:
    """The JSON with other values at paths such as nodes__0__query."""
    data = json.loads(json.dumps(JSON))
    for path, value in changes.items():
        *steps, last = path.split("__")
        place: Any = data
        for step in steps:
            place = place[int(step) if step.isdigit() else step]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return json.dumps(data)


def test_a_plan_in_json() -> None:
    read = PlanForm("instruct").read(json.dumps(JSON), "Who?")
    assert [node.type for node in read.nodes] == ["search", "aggregate", "answer"]
    assert read["a1"] == Node("a1", "aggregate", "who it is", ("name",))
    assert [node.id for node in read.parents("a1")] == ["s1"]
    assert as_json(read) == JSON
    assert PlanForm("instruct").read(PlanForm("instruct").write(read), "Who?") == read
    assert PlanForm("instruct").read(changed(nodes__2__brief=None), "Who?").answer.text == "Who?"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "the plan is no JSON"),
        ("[" * 100_000, "the plan is no JSON"),
        ("[]", "plan: "),
        (json.dumps({"edges": []}), "nodes: Field required"),
        (changed(nodes__0__type="tool"), "nodes.0: "),
        (changed(nodes__0__query=None), "nodes.0.search.query: Field required"),
        (changed(nodes__0__query=7), "nodes.0.search.query: "),
        (changed(nodes__0__query=""), "search 's1' has no query"),
        (changed(nodes__0__key_points="one"), "nodes.0.search.key_points: "),
        (changed(nodes__0__id="s 1"), "nodes.0.search.id: "),
        (changed(nodes__0__id=1), "nodes.0.search.id: "),
        (changed(edges=[["s1", "a1", "end"]]), "edges.0: "),
        (changed(edges=[["s1"]]), "edges.0.1: "),
        (changed(edges=[["s1", "a1"]]), "node 'end' is not connected"),
    ],
)
def test_what_is_no_plan_in_json(text: str, reason: str) -> None:
    with pytest.raises(PlanFault, match=f"^{reason}"):
        PlanForm("instruct").read(text, "Who?")


SHORT = "search mentor of Brol Tan; search mayor of Kel Dax; join 1; join 2 3; answer 3 4"


def test_a_plan_in_short() -> None:
    read = PlanForm("compact").read(SHORT, "Who?")
    assert [(node.id, node.type, node.text) for node in read.nodes] == [
        ("1", "search", "mentor of Brol Tan"),
        ("2", "search", "mayor of Kel Dax"),
        ("3", "aggregate", "mentor of Brol Tan"),
        ("4", "aggregate", "mayor of Kel Dax; mentor of Brol Tan"),
        ("5", "answer", "Who?"),
    ]
    assert read.edges == (("1", "3"), ("2", "4"), ("3", "4"), ("3", "5"), ("4", "5"))
    assert PlanForm("compact").write(read) == SHORT
    assert PlanForm("compact").write(WHOLE) == SHORT.replace("answer 3 4", "answer 4 3")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "node 1 begins with none of search, join, answer"),
        ("search a; find b; answer 1", "node 2 begins with none of"),
        ("search a;; answer 1", "node 2 begins with none of"),
        ("search; answer 1", "search '1' has no query"),
        ("search a; answer", "node 2 does not say by their numbers"),
        ("search a; answer one", "node 2 does not say by their numbers"),
        ("search a; join 1,2; answer 2", "node 2 does not say by their numbers"),
        ("search a; join 1; answer 2 9", "an edge names '9', which is no node"),
        ("search a; join 1 2; answer 2", "the graph has a cycle"),
        ("search a; join 3; join 2; answer 1 2", "the graph has a cycle"),
        ("search a; search b; answer 1", "node '2' is not connected"),
        ("search a; join 1", "there are 0 answer nodes"),
        ("search a; answer 1; join 2", "the answer node '2' has an outgoing edge"),
    ],
)
def test_what_is_no_plan_in_short(text: str, reason: str) -> None:
    with pytest.raises(PlanFault, match=reason):
        PlanForm("compact").read(text, "Who?")


@st.composite
def plans(draw: st.DrawFn) -> Graph:
    """Searches, aggregates of any earlier nodes, and an answer of all that nothing else uses."""
    nodes = [
        Node(str(n + 1), "search", draw(st.sampled_from(["twin of Kel Dax", "mentor of Brol Tan", "x"])))
        for n in range(draw(st.integers(1, 4)))
    ]
    edges: list[tuple[str, str]] = []
    for number in range(len(nodes) + 1, len(nodes) + 1 + draw(st.integers(0, 4))):
        made_of = draw(st.lists(st.sampled_from([node.id for node in nodes]), min_size=1, max_size=3, unique=True))
        nodes.append(Node(str(number), "aggregate", ""))
        edges += [(producer, str(number)) for producer in made_of]
    free = [node.id for node in nodes if not any(producer == node.id for producer, _ in edges)]
    nodes.append(Node(str(len(nodes) + 1), "answer", ""))
    return Graph(tuple(nodes), (*edges, *((id, nodes[-1].id) for id in free)))


@given(plans())
def test_a_plan_is_the_same_graph_in_both_forms(drawn: Graph) -> None:
    check(drawn)
    whole = drawn.completed("Who?")
    for style in ("compact", "instruct"):
        form = PlanForm(style)  # type: ignore[arg-type]
        assert form.read(form.write(whole), "Who?") == whole
    assert from_json(json.loads(json.dumps(as_json(whole)))) == whole
    waves = whole.waves()
    assert sorted(node.id for wave in waves for node in wave) == sorted(node.id for node in whole.aggregates)
    place = {node.id: number for number, wave in enumerate(waves) for node in wave}
    assert all(place[producer] < place[consumer] for producer, consumer in whole.edges if producer in place and consumer in place)


# Replies


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think> a</think><graph> g</graph><fetch> 1</fetch>", True),
        ("<graph> g</graph>\n<fetch></fetch>", True),
        ("<graph> g</graph>", False),
        ("<fetch></fetch><graph> g</graph>", False),
        ("so: <graph> g</graph><fetch></fetch>", False),
    ],
)
def test_thoughts_may_come_first_and_nothing_else(text: str, found: bool) -> None:
    read = read_blocks(text, "graph", "fetch")
    assert (read is not None and read["graph"] == "g") is found


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", []),
        ("[]", []),
        ("3", [3]),
        ("3 5", [3, 5]),
        ("[3, 5]", [3, 5]),
        (" [3,5] ", [3, 5]),
        ("p3", None),
        ("3; 5", None),
        ("-1", None),
    ],
)
def test_what_is_to_be_fetched(text: str, numbers: list[int] | None) -> None:
    assert read_numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "reports"),
    [
        ("<nodes><node id=3> one</node><node id=4> two</node></nodes>", {"3": "one", "4": "two"}),
        ('<think> so</think><nodes> <node id="4"> two</node>\n<node id="3"></node></nodes>', {"4": "two", "3": ""}),
        ("<nodes><node id=3> one</node></nodes>", None),  # one is missing
        ("<nodes><node id=3> a</node><node id=4> b</node><node id=5> c</node></nodes>", None),  # one was not asked for
        ("<nodes><node id=3> a</node><node id=3> b</node></nodes>", None),
        ("<nodes><node id=3> a</node>and<node id=4> b</node></nodes>", None),
        ("<node id=3> a</node><node id=4> b</node>", None),
        ("<nodes><node id=3> a<node id=4> b</node></nodes>", None),
    ],
)
def test_a_waves_reply_has_one_block_for_each_node(text: str, reports: dict[str, str] | None) -> None:
    assert read_reports(text, ["3", "4"]) == reports


@pytest.mark.parametrize(
    ("text", "short", "final"),
    [
        ("<node id=5> all of it</node><answer> Kel Dax</answer>", True, Final("all of it", "Kel Dax")),
        ("<think> hm</think>\n<node id=5> all of it</node>\n<answer> Kel Dax</answer>", True, Final("all of it", "Kel Dax")),
        ("<node id=5> all of it</node>", False, Final("all of it")),
        ("<node id=5> all of it</node>", True, None),
        ("<node id=5> all of it</node><answer></answer>", True, None),
        ("<node id=5> all of it</node><answer> Kel Dax</answer>", False, None),
        ("<node id=4> all of it</node><answer> Kel Dax</answer>", True, None),
        ("<node id=5></node><answer> Kel Dax</answer>", True, None),
        ("<answer> Kel Dax</answer>", True, None),
    ],
)
def test_the_final_reply(text: str, short: bool, final: Final | None) -> None:
    assert read_final(text, "5", short) == final
    assert node_block("5", "all of it") == "<node id=5> all of it</node>"
    assert node_block("5", "") == "<node id=5></node>"


def test_citations_stand_behind_what_they_support() -> None:
    text = "It is so.[1][12] It was [3] once. And now? [2, 4] Nothing"
    assert citations(text) == [1, 12, 3, 2, 4]
    assert uncited(text) == "It is so. It was once. And now? Nothing"
    assert cited_sentences(text) == [("It is so.", [1, 12]), ("It was once.", [3]), ("And now?", [2, 4]), ("Nothing", [])]
    assert cited_sentences("") == []
