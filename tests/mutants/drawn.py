"""Faults drawn from the syntax trees of the sources: six simple operators, and a seed that says which of their places."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.mutants.mutant import Mutant, source

FLIPPED = {
    ast.Lt: ("<", ">="), ast.GtE: (">=", "<"), ast.Gt: (">", "<="), ast.LtE: ("<=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
JUNCTIONS = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
OPERATORS = ("comparison flipped", "+ and - swapped", "and and or swapped", "constant changed", "not removed", "default changed")
Edit = tuple[str, int, int, str]  # operator, where it begins and ends in the file, what stands there instead

# What only jobs of several processes run: tests/e2e/test_sharded.py and test_sharded_slots.py, which take minutes.
ELSEWHERE: Mapping[str, frozenset[str]] = {
    "learner/backends.py": frozenset({"DeepSpeedBackend"}),
}


class _Places(ast.NodeVisitor):
    """Where an operator can act. Annotations, asserts, log lines and texts, those of errors among them, are left alone."""

    def __init__(self, text: str, elsewhere: frozenset[str]) -> None:
        self._text, self._elsewhere = text, elsewhere
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = text.splitlines()
        self.edits: list[Edit] = []

    def _at(self, line: int, column: int) -> int:
        """ast counts a column in bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _between(self, operator: str, left: ast.expr, right: ast.expr, swap: tuple[str, str]) -> None:
        """Changes the sign between two operands; parentheses and comments may stand beside it."""
        start, end = self._span(left)[1], self._span(right)[0]
        word = r"\b" if swap[0][0].isalpha() else ""
        if found := re.search(word + re.escape(swap[0]) + word, self._text[start:end]):
            self.edits.append((operator, start + found.start(), start + found.end(), swap[1]))

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, sign, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._between(OPERATORS[0], left, right, FLIPPED[type(sign)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SIGNS:
            self._between(OPERATORS[1], node.left, node.right, SIGNS[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in SIGNS:
            sign, other = SIGNS[type(node.op)]
            self._between(OPERATORS[1], node.target, node.value, (f"{sign}=", f"{other}="))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(OPERATORS[2], left, right, JUNCTIONS[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) in (int, float) and node.value in (0, 1):
            self.edits.append((OPERATORS[3], *self._span(node), str(type(node.value)(1 - node.value))))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._span(node)[0]
            self.edits.append((OPERATORS[4], start, start + len("not"), ""))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name not in self._elsewhere:
            for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
                self._default(default)
            for statement in node.body:
                self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name not in self._elsewhere:
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._default(node.value) if isinstance(node.value, ast.Constant) else self.visit(node.value)

    def _default(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            other = not node.value if isinstance(node.value, bool) else node.value + 1
            self.edits.append((OPERATORS[5], *self._span(node), str(other)))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "indent":  # how a file is laid out changes nothing of what it says
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if not ast.unparse(node.func).startswith("log."):
            self.generic_visit(node)

    def _leave(self, node: ast.AST) -> None: ...

    visit_Assert = visit_Raise = visit_JoinedStr = _leave  # noqa: N815


def places(file: str) -> Iterator[Mutant]:
    """Every fault that the operators make of a file, in the order of the text."""
    text = source(file)
    finder = _Places(text, ELSEWHERE.get(file, frozenset()))
    finder.visit(ast.parse(text))
    numbers: dict[str, int] = defaultdict(int)
    for operator, start, end, after in sorted(set(finder.edits), key=lambda edit: edit[1:]):
        numbers[operator] += 1
        yield Mutant(f"{file}: {operator} {numbers[operator]}", operator, file, start, text[start:end], after)


def draw(files: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` of them, from each operator in turn."""
    rng = random.Random(seed)
    by_operator: dict[str, list[Mutant]] = {operator: [] for operator in OPERATORS}
    for file in sorted(files):
        for mutant in places(file):
            by_operator[mutant.kind].append(mutant)
    decks = [rng.sample(found, len(found)) for found in by_operator.values()]
    found: list[Mutant] = []
    while len(found) < count and any(decks):
        found += [deck.pop() for deck in decks if deck]
    return found[:count]
