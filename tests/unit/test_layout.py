"""What pytest needs of the tests' own names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_no_two_modules_of_tests_share_a_name() -> None:
    """Folders of tests are no packages, so that a name stands for one module in the whole run."""
    tests = Path(__file__).parents[1]
    loose = [path for path in tests.rglob("*.py") if path.parent == tests or not (path.parent / "__init__.py").exists()]  # in no package
    names = Counter(
        path.name for path in loose if path.name not in ("conftest.py", "__init__.py", "sitecustomize.py")
    )  # the last one is of processes that tests start
    assert [name for name, count in names.items() if count > 1] == []
