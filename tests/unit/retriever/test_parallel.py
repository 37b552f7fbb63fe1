"""Several processes that encode: the same parts, whoever makes them, and what becomes of one that dies. Processes are real ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from rolecast.errors import InputError, RolecastError
from rolecast.retriever import vectors
from rolecast.retriever.vectors import encoded
from tests.encoders import Fake


class Sized(Fake):
    """A text's vector is its number and how many were encoded with it. `die` kills the process, once for each file left under `name`."""

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        assert side == "passage"
        if "refused" in texts:
            raise InputError("it is refused")
        if "broken" in texts:
            raise ZeroDivisionError("by nothing")
        for life in sorted(Path(self.name).glob("life*")) if "die" in texts else []:
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        with (Path(self.name) / "who").open("a") as who:
            who.write(f"{os.getpid()}\n")
        return np.array([[float(len(text)), len(texts)] for text in texts], dtype=np.float32)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "PART", 3)


TEXTS = ["a", "bb", "ccc", "dddd", "e", "ff", "g", "hh"]


def made(folder: Path, texts: Sequence[str], procs: int, shown: Any = lambda done, total: None) -> list[list[list[float]]]:
    return [part.tolist() for part in encoded(texts, Sized(str(folder)), folder / "parts", shown, procs=procs)]  # type: ignore[arg-type]


def test_several_processes_make_the_parts_of_one_in_order(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    told: list[tuple[int, int]] = []
    two = made(tmp_path / "two", TEXTS, 2, lambda done, total: told.append((done, total)))
    assert two == made(tmp_path / "one", TEXTS, 1) == [[[1, 3], [2, 3], [3, 3]], [[4, 3], [1, 3], [2, 3]], [[1, 2], [2, 2]]]
    assert told == [(3, 8), (6, 8), (8, 8)]
    workers = (tmp_path / "two" / "who").read_text().split()
    assert len(workers) == 3
    assert str(os.getpid()) not in workers
    assert made(tmp_path / "two", TEXTS, 2) == two  # what is kept is not made again
    assert (tmp_path / "two" / "who").read_text().split() == workers


def test_the_part_of_a_process_that_died_is_made_by_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "life1").touch()
    assert made(tmp_path, [*TEXTS[:3], "die", "e"], 2) == [[[1, 3], [2, 3], [3, 3]], [[3, 2], [1, 2]]]
    assert "which encoded texts 3 to 4, died by signal SIGKILL; another one takes them" in caplog.text


def test_texts_that_kill_every_process_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    for life in range(vectors.PART + 1):
        (tmp_path / f"life{life}").touch()
    with pytest.raises(RolecastError, match=r"encodes texts 3 to 4 died 3 times, at last by signal SIGKILL"):
        made(tmp_path, [*TEXTS[:3], "die", "e"], 2)
    assert len(list((tmp_path / "parts").glob("*.npy"))) == 1


@pytest.mark.parametrize(
    ("text", "kind", "why"), [("refused", InputError, "it is refused"), ("broken", RolecastError, "ZeroDivisionError by nothing")]
)
def test_a_fault_of_the_encoder_is_one_line_that_names_the_texts(tmp_path: Path, text: str, kind: type[RolecastError], why: str) -> None:
    with pytest.raises(kind, match=f"texts 0 to 0 cannot be encoded: {why}"):
        made(tmp_path, [text], 2)
