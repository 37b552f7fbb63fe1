"""What is free here, and what is refused for want of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast import room
from rolecast.errors import InputError

MEMINFO = "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  4000 kB\n"


def group(folder: Path, most: str, now: int, cache: int) -> Path:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{now}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    return folder


def test_free_memory_is_the_machines_or_its_control_groups(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert room.free_memory(meminfo, tmp_path / "none") == 4000 * 1024
    assert room.free_memory(meminfo, group(tmp_path / "open", "max", 10, 0)) == 4000 * 1024
    assert room.free_memory(meminfo, group(tmp_path / "tight", "1000000", 900_000, 50_000)) == 150_000
    assert room.free_memory(tmp_path / "none", tmp_path / "none") is None


def test_what_needs_more_than_is_free_is_one_line_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 8 * 10**9)
    room.require_memory("it", 8 * 10**9, "wait")
    with pytest.raises(InputError, match=r"^it takes 32\.3 GB of memory, and 8\.0 GB are free; wait$"):
        room.require_memory("it", 32_300_000_000, "wait")
    monkeypatch.setattr(room, "free_memory", lambda: None)
    room.require_memory("it", 10**18, "wait")
    with pytest.raises(InputError, match=rf"^it takes 1,000,000,000\.0 GB of disk at {tmp_path}, and .* are free; wait$"):
        room.require_disk("it", 10**18, tmp_path / "file", "wait")


def test_disk_is_measured_where_a_folder_would_be_made(tmp_path: Path) -> None:
    assert room.free_disk(tmp_path / "not" / "yet") > 0
