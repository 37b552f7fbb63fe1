"""The mutants themselves: the lists fit the sources, a draw repeats, and what is drawn changes code and nothing else."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants.__main__ import by_hand, every, sharded
from tests.mutants.covering import COVERING, covering
from tests.mutants.drawn import OPERATORS, draw, places
from tests.mutants.equivalent import EQUIVALENT, why
from tests.mutants.mutant import ROOT, listed, source
from tests.mutants.of_training import TWELVE


def test_every_listed_text_stands_in_its_file_once_and_every_name_is_one_mutants() -> None:
    found = by_hand()  # it raises for a text that does not
    assert len(found) >= 60
    names = Counter(mutant.name for mutant in (*every(0), *sharded()))
    assert [name for name, times in names.items() if times > 1] == []
    assert [name for name in TWELVE if name not in {mutant.name for mutant in found}] == []


def test_a_text_that_is_not_there_once_is_named() -> None:
    with pytest.raises(ValueError, match=r"mutant 'gone': its text stands in credit\.py 0 times"):
        listed("term", "credit.py", "gone", "no such text", "")
    with pytest.raises(ValueError, match=r"stands in credit\.py \d+ times, not once"):
        listed("term", "credit.py", "often", "units", "")


def test_as_many_are_drawn_as_written_and_a_seed_draws_them_again() -> None:
    count = len(by_hand())
    drawn = draw(list(COVERING), count, 1)
    assert len(drawn) == count
    assert drawn == draw(sorted(COVERING, reverse=True), count, 1) != draw(list(COVERING), count, 2)
    assert {mutant.kind for mutant in drawn} == set(OPERATORS)


def test_what_is_drawn_is_another_program() -> None:
    for mutant in draw(list(COVERING), 150, 3):
        assert ast.dump(ast.parse(mutant.text)) != ast.dump(ast.parse(source(mutant.file))), mutant.name


def test_mutants_are_covered_by_tests_that_are_there() -> None:
    assert [place for mutant in by_hand() for place in covering(mutant.file) if not (ROOT / place).exists()] == []
    assert [place for mutant in sharded() for place in covering(mutant.file, slow=True) if not (ROOT / place).exists()] == []


def test_how_a_file_is_laid_out_is_no_fault() -> None:
    """One of the evaluation's JSON files is indented."""
    assert "indent=1" in source("stages/evaluate.py")
    assert [mutant.diff for mutant in places("stages/evaluate.py") if "indent=0" in mutant.text] == []


def test_equivalent_mutants_are_of_lines_that_the_operators_or_lists_make() -> None:
    made = {(mutant.file, mutant.changed) for file in COVERING if any(file == of for of, _ in EQUIVALENT) for mutant in places(file)} | {
        (m.file, m.changed) for m in by_hand()
    }
    assert [line for line in EQUIVALENT if line not in made] == []
    assert all(why(mutant) or mutant.name for mutant in by_hand())
