"""DecomposeR's teacher: it plans the searches of the gold chain as far as they can be asked for, a branch for each thing that is wanted.

Its plans leave nodes out, ask for wrong relations and lack aggregates at named rates, and its reports leave key points out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rolecast.methods.decomposer.form import PlanForm, cited_sentences, node_block
from rolecast.methods.decomposer.graph import Graph, Node
from rolecast.methods.decomposer.state import Assigned, DecomposerState, Source
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer
from rolecast.types import Hop, Question, Trajectory
from rolecast.world.grammar import RELATIONS, RELATIONS_OF, Fact, facts_in, forward_query, names


@dataclass(frozen=True, slots=True)
class DecomposerTeacher:
    errors: TeacherErrors
    form: PlanForm
    turns: int = 2
    short_answer: bool = True

    def reply(self, role: str, state: DecomposerState, episode: Trajectory, rng: random.Random) -> str:
        question = episode.question
        if role == "planner":
            return tagged("graph", self._plan(question, state, rng))
        if role == "reviser":
            return tagged("graph", self._plan(question, state, rng)) + tagged("fetch", "")
        if role == "answerer":
            return "<nodes>" + "".join(node_block(node.id, self._report(node, rng)) for node in state.wave) + "</nodes>"
        assert state.final is not None
        report = final_report(question, state.final)
        answer = tagged("answer", short_answer(question, report)) if self.short_answer else ""
        return node_block(state.final.id, report) + answer

    def _plan(self, question: Question, state: DecomposerState, rng: random.Random) -> str:
        queries = self._queries(question, state, rng)
        flat = self.form.structure == "linear" or rng.random() < self.errors.skip_aggregates
        joins = [] if flat else self._joins(question, queries)
        places = {hop: str(number) for number, hop in enumerate(queries, 1)}
        nodes = [Node(places[hop], "search", query) for hop, query in queries.items()]
        edges = []
        for join in joins:
            nodes.append(Node(str(len(nodes) + 1), "aggregate", ""))
            edges += [(places[hop], nodes[-1].id) for hop in join]
        producers = [node for node in nodes if not any(producer == node.id for producer, _ in edges)]
        nodes.append(Node(str(len(nodes) + 1), "answer", ""))
        edges += [(producer.id, nodes[-1].id) for producer in producers]
        return self.form.write(Graph(tuple(nodes), tuple(edges)).completed(question.text))

    def _queries(self, question: Question, state: DecomposerState, rng: random.Random) -> dict[Hop, str]:
        """What to search for each fact that can be asked for by now. At least one search is left in a plan."""
        chain, e = question.gold.chain, self.errors
        known = set(facts_in(" ".join(source.text for found in state.results for source in found.sources)))
        drafted = {found.query for found in state.results}
        wanted = {hop: query for hop in chain if (query := self._query(hop, question, known)) is not None}
        kept = {hop: query for hop, query in wanted.items() if query in drafted or rng.random() >= e.drop_node}
        kept = kept or dict([next(iter(wanted.items()))])
        return {
            hop: self._wrong(hop, rng) if query not in drafted and self._can_be_wrong(hop) and rng.random() < e.wrong_relation else query
            for hop, query in kept.items()
        }

    def _query(self, hop: Hop, question: Question, known: set[Fact]) -> str | None:
        """None for a fact about an entity that is not known yet. A planner of one turn asks for it by what leads there."""
        before = next((other for other in question.gold.chain if other.object == hop.subject and names(hop.query, hop.subject)), None)
        if names(question.text, _entity(hop)) or before is None or Fact(before.subject, before.relation, before.object) in known:
            return hop.query
        if self.turns == 2:
            return None
        return f"{hop.relation} of {self._query(before, question, known)}"

    @staticmethod
    def _can_be_wrong(hop: Hop) -> bool:
        return hop.relation in RELATIONS and names(hop.query, hop.subject)

    @staticmethod
    def _wrong(hop: Hop, rng: random.Random) -> str:
        others = [relation for relation in RELATIONS_OF[RELATIONS[hop.relation][0]] if relation != hop.relation]
        return forward_query(rng.choice(others), hop.subject)

    def _joins(self, question: Question, queries: Sequence[Hop] | dict[Hop, str]) -> list[tuple[Hop, ...]]:
        """What each aggregate is made of: the searches of one branch, or each alone in a tree."""
        if self.form.structure == "tree":
            return [(hop,) for hop in queries]
        paths = [tuple(hop for hop in path if hop in queries) for path in branches_of(question.gold.chain)]
        return list(dict.fromkeys(path for path in paths if path))

    def _report(self, node: Assigned, rng: random.Random) -> str:
        said = [sentence for report in node.reports.values() for sentence in _sentences(report)]
        said += [stated for point in node.key_points for stated in _answers(point, node.sources)]
        said = list(dict.fromkeys(said))
        if said and rng.random() < self.errors.skip_point:
            said.remove(rng.choice(said))
        return " ".join(said)


def branches_of(chain: Sequence[Hop]) -> list[tuple[Hop, ...]]:
    """For each fact that no other one builds on, the facts that lead to it, in their order."""
    leads = {hop: next((other for other in chain if other.object == hop.subject and names(hop.query, hop.subject)), None) for hop in chain}
    paths = []
    for leaf in chain:
        if leaf in leads.values():
            continue
        path: list[Hop] = []
        at: Hop | None = leaf
        while at is not None and at not in path:
            path.insert(0, at)
            at = leads[at]
        paths.append(tuple(path))
    return paths


def final_report(question: Question, node: Assigned) -> str:
    """What the branches say, each sentence once, and the gold facts among evidence that feeds the answer directly."""
    gold = {hop.fact for hop in question.gold.chain}
    said = [sentence for report in node.reports.values() for sentence in _sentences(report)]
    said += [f"{fact.sentence}[{source.number}]" for source in node.sources for fact in facts_in(source.text) if fact.sentence in gold]
    return " ".join(dict.fromkeys(said)) or "nothing"


def short_answer(question: Question, report: str) -> str:
    """The last fact of each branch that the report has; where all are there, the gold answer."""
    if question.type not in ("pair", "fork"):
        return best_answer(question, report)
    facts = set(facts_in(report))
    ends = [path[-1] for path in branches_of(question.gold.chain)]
    found = [hop.object for hop in ends if Fact(hop.subject, hop.relation, hop.object) in facts]
    return " and ".join(found) or "unknown"


def _entity(hop: Hop) -> str:
    return hop.subject if names(hop.query, hop.subject) else hop.object


def _sentences(report: str) -> list[str]:
    """With their citations behind them, as they were written."""
    return [sentence + "".join(f"[{number}]" for number in numbers) for sentence, numbers in cited_sentences(report)]


def _answers(point: str, evidence: Sequence[Source]) -> list[str]:
    """Sentences of the evidence that say what the key point asks for, with their citations."""
    return [
        f"{fact.sentence}[{source.number}]"
        for source in evidence
        for fact in facts_in(source.text)
        if point in (fact.query, fact.inverse_query)
    ]
