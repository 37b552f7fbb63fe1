"""`rolecast store`: what lies there, whether it is sound, what may go, and copies."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.errors import ArtifactError, InputError
from rolecast.store.artifact import writing
from rolecast.store.upkeep import superfluous
from rolecast.store.uri import open_store
from tests.weed import S3Server


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    weed: S3Server = request.getfixturevalue("weed")
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://ready/upkeep/{uuid.uuid4().hex[:12]}"


def publish(place: str, folder: Path, *keys: str) -> None:
    for key in keys:
        with writing(folder / "made" / key, "thing", {}) as partial:
            (partial / "data.bin").write_bytes(b"x" * 1500)
        open_store(place).publish(folder / "made" / key, key)


def store(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["store", *arguments])
    if isinstance(done.exception, (ArtifactError, InputError)):
        return done.exception.exit_code, f"{done.stdout}{done.exception}"
    assert done.exception is None, done.exception
    return done.exit_code, done.stdout


KEYS = ["run/index", "run/rl/checkpoints/step-9", "run/rl/checkpoints/step-10", "run/rl/checkpoints/step-100", "run/rl/best/step-9"]


def test_ls_names_what_is_committed_and_what_is_not(place: str, tmp_path: Path) -> None:
    publish(place, tmp_path, *KEYS)
    code, said = store("ls", place)
    assert (code, sorted(line.split()[-1] for line in said.splitlines())) == (0, sorted(KEYS))
    assert all(line.split()[:5] == ["thing", "1", "files", "1.5", "kB"] for line in said.splitlines())
    assert [line.split()[-1] for line in store("ls", f"{place}/run/index")[1].splitlines()] == ["index"]
    if place.startswith("s3://"):
        open_store(place)._write("run/dead/.claim", b"{}", absent=False)  # type: ignore[attr-defined]
    else:
        (Path(place) / "run" / ".dead.0123abcd.staged").mkdir()
        (Path(place) / "run" / "..dead.0123abcd.staged.4567cdef.partial").mkdir()
    assert "run/dead" not in store("ls", place)[1]
    assert [line.split() for line in store("ls", place, "--unfinished")[1].splitlines()][-1][0] == "unfinished"
    assert open_store(place).unfinished("run") == ["run/dead"]


def test_verify_reads_every_file(place: str, tmp_path: Path) -> None:
    publish(place, tmp_path, *KEYS[:2])
    assert store("verify", place) == (0, "".join(f"sound    {key}\n" for key in KEYS[:2]))
    open_store(place).put(f"{KEYS[1]}/data.bin", b"y" * 1500)
    code, said = store("verify", place)
    assert code == 1
    assert f"sound    {KEYS[0]}\n" in said
    assert f"damaged  {KEYS[1]}: " in said
    assert "data.bin" in said
    assert "1 of 2 artifacts are damaged" in said


def test_gc_deletes_only_when_it_is_told_to(place: str, tmp_path: Path) -> None:
    publish(place, tmp_path, *KEYS)
    code, said = store("gc", place, "--keep", "1")
    assert (code, said.count("would go")) == (0, 2)
    assert "give --delete" in said
    assert open_store(place).artifacts("") == sorted(KEYS)
    code, said = store("gc", place, "--keep", "1", "--pin", "run/rl/checkpoints/step-9", "--delete")
    assert (code, said.count("deleted")) == (0, 1)
    assert open_store(place).artifacts("") == sorted({*KEYS} - {"run/rl/checkpoints/step-10"})


def test_cp_copies_and_writes_over_nothing(place: str, tmp_path: Path) -> None:
    publish(place, tmp_path, "run/index")
    assert store("cp", f"{place}/run/index", str(tmp_path / "here" / "copy"))[0] == 0
    assert (tmp_path / "here" / "copy" / "data.bin").read_bytes() == b"x" * 1500
    assert store("cp", str(tmp_path / "here" / "copy"), f"{place}/run/index")[0] == 0  # the same again
    with writing(tmp_path / "other", "thing", {}) as partial:
        (partial / "data.bin").write_bytes(b"other")
    code, said = store("cp", str(tmp_path / "other"), f"{place}/run/index")
    assert (code, "holds another artifact" in said) == (1, True)


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_an_address_of_nothing_is_told(place: str, command: str) -> None:
    code, said = store(command, f"{place}/nothing")
    assert (code, said) == (2, f"{place}/nothing holds no committed artifact; check the address")


@pytest.mark.parametrize(
    ("keys", "keep", "pinned", "going"),
    [
        (["a/step-9", "a/step-10", "a/step-100"], 2, [], ["a/step-9"]),  # by number, not by letter
        (["a/step-1", "a/other-2", "b/step-3"], 1, [], []),  # three series
        (["run/index", "run/world", "run/rl/model"], 1, [], []),
        (["a/best/step-1", "a/best/step-2", "a/best/slots/3", "a/best/slots/4"], 1, [], []),
        (["shards/0", "shards/1", "shards/2"], 1, ["shards/1"], ["shards/0"]),
        (["a/step-1", "a/step-2", "b/step-1", "b/step-2"], 1, ["a"], ["b/step-1"]),
        (["a/step-1", "a/step-2"], 1, ["a/step"], ["a/step-1"]),
    ],
)
def test_what_may_go(keys: Sequence[str], keep: int, pinned: list[str], going: list[str]) -> None:
    assert superfluous(keys, keep, pinned) == going


def test_all_of_a_series_cannot_go() -> None:
    with pytest.raises(InputError, match="keep = 0"):
        superfluous(["a/1"], 0, [])
