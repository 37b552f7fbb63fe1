"""The table of exits: what is submitted again, what leads, and that every error of ours and the documentation keep to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rolecast.errors as errors
import rolecast.launching.failure
import rolecast.service.client  # noqa: F401
from rolecast.errors import Interrupted, RolecastError, of_exit
from rolecast.exits import BAD_INPUT, FAILED, NAMED_STOP, PEER_LOST, TABLE, again, cause, meaning, of_process

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("code", "retried"),
    [(0, False), (1, True), (2, False), (3, False), (4, True), (129, True), (130, True), (137, True), (143, True), (139, True), (77, True)],
)
def test_bad_input_and_a_named_stop_are_never_submitted_again(code: int, retried: bool) -> None:
    assert again(code) is retried


@pytest.mark.parametrize(
    ("codes", "first"),
    [
        ([], 0),
        ([0, 0], 0),
        ([143, 143], 143),
        ([4, 143], 143),  # who only lost another one knows least
        ([4, 4], 4),
        ([143, 4, 137], 137),
        ([4, 2], 2),
        ([1, 137], 1),  # the second one was ended because of the first
        ([0, 3], 3),
    ],
)
def test_the_code_that_says_why_leads(codes: list[int], first: int) -> None:
    assert cause(codes) == first


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    assert [of_process(code) for code in (0, 2, -9, -15)] == [0, 2, 137, 143]
    assert [meaning(code) for code in (139, 250)] == ["ended by SIGSEGV", "ended in a way that has no name"]


def kinds(of: type[RolecastError] = RolecastError) -> list[type[RolecastError]]:
    """It and every named error below it, of `errors` and of what is imported here."""
    return [of, *(kind for below in of.__subclasses__() for kind in kinds(below))]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind is not Interrupted], ids=lambda kind: kind.__name__)
def test_every_error_exits_with_a_code_of_the_table(kind: type[RolecastError]) -> None:
    assert kind.exit_code in {FAILED, BAD_INPUT, NAMED_STOP, PEER_LOST}


@pytest.mark.parametrize(
    "name", ["FencedError", "RatioGateError", "EmptyUpdateError", "DivergedError", "CollapseError", "SamplingError", "NamedStop"]
)
def test_what_a_run_has_come_to_is_a_named_stop(name: str) -> None:
    assert getattr(errors, name).exit_code == NAMED_STOP


def test_another_process_error_is_told_from_its_code() -> None:
    assert [of_exit(code, "x").exit_code for code in (1, 2, 3, 139)] == [1, 2, 3, 1]


def test_the_documentation_shows_this_table() -> None:
    rows = [line for line in (DOCS / "running.md").read_text().splitlines() if line.startswith("| `")]
    for row in TABLE:
        retried = "yes" if row.again else "" if row.code == 0 else "never"
        assert f"| `{row.code}` | {row.means} | {retried} |" in rows
