"""How many threads a process takes, and that waiting ones soon sleep: settled before torch is there, and never over a user's head."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolecast import threads
from rolecast.launching.learner_pod import environment
from rolecast.launching.spec import read_spec
from rolecast.threads import CHOSEN, COUNT, WAITING, cores, prepare_threads, quotas


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 4)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, "4"),
        ({"LOCAL_WORLD_SIZE": "2"}, "2"),
        ({"LOCAL_WORLD_SIZE": "9"}, "1"),
        ({COUNT: "3"}, "3"),  # the user's
        ({COUNT: "3", CHOSEN: "3", "LOCAL_WORLD_SIZE": "2"}, "2"),  # a parent of ours chose it
        ({COUNT: "1", CHOSEN: "3"}, "1"),  # the user changed it for this child
    ],
)
def test_threads_are_the_cores_shared_by_a_jobs_processes_unless_the_user_says(given: dict[str, str], count: str) -> None:
    prepare_threads(given)
    assert given[COUNT] == count


@pytest.mark.parametrize("name", WAITING)
def test_waiting_threads_soon_sleep_unless_the_user_says(name: str) -> None:
    environment: dict[str, str] = {}
    prepare_threads(environment)
    assert (environment["GOMP_SPINCOUNT"], environment["KMP_BLOCKTIME"]) == ("1000", "0")
    environment = {name: "7"}
    prepare_threads(environment)
    assert [environment.get(other) for other in WAITING] == ["7" if other == name else None for other in WAITING]


GROUPS = {
    "nothing": ({}, "0::/\n", []),
    "version 2": ({"cpu.max": "150000 100000"}, "0::/\n", [1.5]),
    "version 2, no limit": ({"cpu.max": "max 100000"}, "0::/\n", []),
    "version 2, the parent's": ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", [2.0]),
    "version 2, a path of the host": ({"cpu.max": "300000 100000"}, "0::/kubepods/x\n", [3.0]),
    "version 1": (
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        "3:cpuset:/a\n2:cpu,cpuacct:/a\n",
        [0.5],
    ),
    "version 1, no limit": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "2:cpu:/\n", []),
    "a broken file": ({"cpu.max": "much"}, "0::/\n", []),
}


@pytest.mark.parametrize("case", GROUPS)
def test_the_time_that_control_groups_have(tmp_path: Path, case: str) -> None:
    files, own, found = GROUPS[case]
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert list(quotas(tmp_path / "fs", tmp_path / "own")) == found
    assert list(quotas(tmp_path / "fs", tmp_path / "none")) == []


@pytest.mark.parametrize(("quota", "count"), [([], 3), ([1.5], 1), ([0.5], 1), ([2.0, 8.0], 2), ([64.0], 3)])
def test_cores_are_those_of_the_affinity_within_the_quota(monkeypatch: pytest.MonkeyPatch, quota: list[float], count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    monkeypatch.setattr(threads, "quotas", lambda: iter(quota))
    assert cores() == count


@pytest.mark.parametrize("module", ["rolecast.cli.main", "rolecast.learner.main", "rolecast.stages.tasks"])
def test_what_settles_threads_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; from rolecast.processes import prepare_process; assert 'torch' not in sys.modules; prepare_process()"
    code += "; import os, torch; print(os.environ['GOMP_SPINCOUNT'], torch.get_num_threads())"
    clean = {name: value for name, value in os.environ.items() if name not in (COUNT, CHOSEN, *WAITING)}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.stdout.split() == ["1000", str(cores())], done.stderr


@pytest.mark.parametrize("procs", [1, 2])
def test_threads_of_a_jobs_pods_soon_sleep_and_each_rank_counts_its_own(procs: int) -> None:
    env = {
        entry["name"]: entry.get("value")
        for entry in environment(read_spec({"run": "s3://b/a", "stage": "sft", "image": "-", "procs_per_node": procs}))
    }
    assert (env["GOMP_SPINCOUNT"], env["KMP_BLOCKTIME"]) == ("1000", "0")
    assert not {COUNT, CHOSEN} & set(env)
