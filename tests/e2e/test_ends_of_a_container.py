"""A learner's container's command as it is rendered, with two real ranks on a run in S3: grace, exit code, termination message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import make_config
from rolecast.exits import again
from rolecast.launching.pytorchjob import render
from rolecast.launching.spec import read_spec
from rolecast.processes import TERMINATION
from rolecast.stages.run import WORKDIR, Run, create
from tests.weed import S3Server, free_ports

FAULTY = Path(__file__).parent / "faulty"
CONFIG: dict[str, Any] = {
    "name": "ends",
    "threads": 1,
    "method": {"name": "decor", "prompts": "compact", "max_tokens": 24, "memory_tokens": 128, "condenser": "extractive"},
    "model": {"max_context": 256, "scratch": {"hidden": 32, "layers": 1, "heads": 2, "head_dim": 16, "feed_forward": 64}},
    "data": {"world": {"entities": {"train": 150, "dev": 60, "test": 90}, "questions": {"train": 60, "dev": 8, "test": 16}}},
}


class Container:
    """What a pod of the job runs, with the operator's variables, and ConfigMap and Secret of the test's S3 server."""

    def __init__(
        self, folder: Path, weed: S3Server, run: str, node: int = 0, port: int = 0, environ: dict[str, str] | None = None, **spec: Any
    ):
        self.log, self.output = folder / "termination-log", folder / "output"
        folder.mkdir()
        self.log.touch()
        job = render(read_spec({"run": run, "stage": "sft", "image": "none", "procs_per_node": 2, **spec}))[0]
        replicas = job["spec"]["pytorchReplicaSpecs"]["Worker" if node else "Master"]
        pod = replicas["template"]["spec"]
        self.grace = pod["terminationGracePeriodSeconds"]
        (container,) = pod["containers"]
        operator = {"PET_NODE_RANK": node, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "RANK": node, "WORLD_SIZE": 9}
        known = {**weed.environ, "ROLECAST_STORE": "s3://unused"}
        env = {entry["name"]: entry.get("value", known.get(entry["name"])) for entry in container["env"]}
        python, *arguments = container["command"]
        assert python == "python"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env={
                    **os.environ, **{name: str(value) for name, value in operator.items()},
                    **{name: value for name, value in env.items() if value is not None}, "OMP_NUM_THREADS": "1",
                    **(environ or {}), WORKDIR: str(folder), TERMINATION: str(self.log),
                    "PYTHONPATH": os.pathsep.join([str(FAULTY), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]),
                },
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def until_it_trains(self) -> None:
        deadline = time.monotonic() + 120
        while not any(file.stat().st_size for file in self.log.parent.glob("*/**/sft/metrics.jsonl")):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def ranks(self) -> list[int]:
        return [int(child) for file in Path(f"/proc/{self.process.pid}/task").glob("*/children") for child in file.read_text().split()]

    def ended(self, seconds: float = 200) -> tuple[int, str]:
        """The exit code and the termination message, which is the last line of the output."""
        code = self.process.wait(timeout=seconds)
        said = self.log.read_text()
        if code:
            assert self.output.read_text().splitlines()[-1] == said
        return code, said

    def lost(self) -> None:
        """As a node's kernel or a machine without power ends it."""
        for pid in (*self.ranks(), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def place(weed: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(WORKDIR, str(tmp_path / "here"))
    return f"s3://{weed.make_bucket(f'ends-{uuid.uuid4().hex[:8]}')}/run"


def made(place: str, **sft: Any) -> Run:
    settings = {"steps": 4000, "batch": 8, "lr": 1e-3, "checkpoint_every": 3000, "optimizer": {"name": "muon", "rest": 1.0}, **sft}
    return create(place, make_config({**CONFIG, "stages": {"sft": settings}}, "test"))


def saves_after_sigterm(tmp_path: Path, weed: S3Server, place: str, takes: float, grace: int) -> None:
    run = made(place)
    container = Container(tmp_path / "first", weed, place, grace_seconds=grace, environ={"FAULTY_SAVE": str(takes)})
    assert container.grace == grace
    container.until_it_trains()
    began = time.monotonic()
    container.process.send_signal(signal.SIGTERM)
    code, said = container.ended()
    assert takes < time.monotonic() - began < grace
    assert (code, said[:39]) == (143, "rolecast: told to end: sft is saved at ")
    assert run.store is not None
    assert len(run.store.artifacts("sft/checkpoints")) == 1
    assert again(code)


def test_ranks_that_save_slowly_after_sigterm_are_left_to_it(tmp_path: Path, weed: S3Server, place: str) -> None:
    saves_after_sigterm(tmp_path, weed, place, takes=5, grace=30)


@pytest.mark.slow
def test_ranks_that_need_45_of_120_seconds_have_them(tmp_path: Path, weed: S3Server, place: str) -> None:
    """45 s are more than torchrun gives."""
    saves_after_sigterm(tmp_path, weed, place, takes=45, grace=120)


@pytest.mark.slow
def test_ranks_that_need_more_than_their_grace_are_killed_within_it(tmp_path: Path, weed: S3Server, place: str) -> None:
    made(place)
    container = Container(tmp_path / "first", weed, place, grace_seconds=30, environ={"FAULTY_SAVE": "60"})
    container.until_it_trains()
    began = time.monotonic()
    container.process.send_signal(signal.SIGTERM)
    code, said = container.ended()
    assert 20 <= time.monotonic() - began < 30
    assert (code, "sft had not saved in time" in said) == (137, True)
    assert again(code)


@pytest.mark.slow
def test_bad_input_that_only_the_ranks_see(tmp_path: Path, weed: S3Server, place: str) -> None:
    made(place)
    code, said = Container(tmp_path / "first", weed, place, zero_stage=2).ended()
    assert (code, said) == (
        2, "rolecast: optimizer muon needs whole matrices, which ZeRO cuts up; use optimizer.name=adamw or learner.name=plain"
    )  # fmt: skip
    assert not again(code)


@pytest.mark.slow
def test_a_named_stop(tmp_path: Path, weed: S3Server, place: str) -> None:
    made(place, lr=100, optimizer={"name": "sgd", "max_grad_norm": 1e12})
    code, said = Container(tmp_path / "first", weed, place).ended()
    assert (code, said[:10], "not finite" in said) == (3, "rolecast: ", True), said
    assert not again(code)


@pytest.mark.slow
def test_a_crash(tmp_path: Path, weed: S3Server, place: str) -> None:
    made(place, checkpoint_every=20)
    code, said = Container(tmp_path / "first", weed, place, environ={"FAULTY_SAVE": "crash"}).ended()
    assert code == 1
    assert said in {
        f"rolecast: rank {rank}: ValueError: could not convert string to float: 'crash'; the traceback is above" for rank in (0, 1)
    }
    assert again(code)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_soon(tmp_path: Path, weed: S3Server, place: str) -> None:
    made(place)
    container = Container(tmp_path / "first", weed, place)
    container.until_it_trains()
    began = time.monotonic()
    os.kill(container.ranks()[1], signal.SIGKILL)
    code, said = container.ended()
    assert (code, said[:42]) == (137, "rolecast: rank 1 of this node was killed; ")
    assert time.monotonic() - began < 25
    assert again(code)


@pytest.fixture
def nodes(tmp_path: Path, weed: S3Server, place: str) -> Iterator[list[Container]]:
    made(place)
    port = free_ports(1)[0]
    started = [
        Container(tmp_path / f"node-{node}", weed, place, node=node, port=port, nodes=2, procs_per_node=1, environ={"PORT": str(port)})
        for node in range(2)
    ]
    yield started
    for container in started:
        if container.process.poll() is None:
            container.lost()


@pytest.mark.slow
def test_a_node_that_is_lost_ends_the_job_as_a_whole_at_once(nodes: list[Container]) -> None:
    nodes[0].until_it_trains()
    nodes[1].lost()
    assert nodes[0].ended(seconds=30) == (4, "rolecast: another rank of the job has ended; see what its pod says")
    assert again(4)


@pytest.mark.slow
def test_a_node_that_is_drained_has_all_nodes_save(nodes: list[Container]) -> None:
    nodes[0].until_it_trains()
    nodes[1].process.send_signal(signal.SIGTERM)
    for code, said in (node.ended(seconds=60) for node in nodes):
        assert (code, said[:39]) == (143, "rolecast: told to end: sft is saved at ")
