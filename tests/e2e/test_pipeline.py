"""The whole job through the real commands: pipeline, report, ask, serve; with a model too small to be right."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.test_resume import CONFIG

METHODS = {
    "decor": CONFIG.split("method: ")[1].splitlines()[0],
    "search_r1 with GRPO": "{name: search_r1, algorithm: grpo, reward: format, prompts: compact, max_tokens: 20, observation_tokens: 64, lr: 1.0e-4}",
    "search_r1 with PPO": "{name: search_r1, algorithm: ppo, reward: format, prompts: compact, max_tokens: 20, observation_tokens: 64, lr: 1.0e-3, critic_lr: 1.0e-3}",
}


def rolecast(*arguments: str, timeout: int = 400) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rolecast.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "config.yaml").write_text(CONFIG.replace(METHODS["decor"], METHODS[request.param]))
    result = rolecast("pipeline", "run", "--local", "--config", str(folder / "config.yaml"), "--run", str(folder / "run"))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert "95 % interval" in result.stdout
    return folder / "run"


@pytest.mark.slow
def test_a_run_leaves_summary_and_report(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["stages"]) == {"sft", "rl"}
    for result in summary["stages"].values():
        assert 0 <= result["ci95"][0] <= result["em"] <= result["ci95"][1] <= 1
        assert sum(part["n"] for part in result["by_hops"].values()) == result["n"] == 16
    assert (run / summary["report"]).read_text().startswith("<!")
    assert set(summary["seconds"]) == {"world", "index", "sft", "rl", "eval_sft", "eval_rl"}


@pytest.mark.slow
def test_the_same_command_again_finds_everything_done(run: Path) -> None:
    before = (run / "rl" / "model" / "manifest.json").stat().st_mtime_ns
    assert rolecast("rl", str(run)).returncode == 0
    assert (run / "rl" / "model" / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_trained_team_can_be_asked(run: Path) -> None:
    result = rolecast("ask", "What is the twin of Bak Bam?", "--run", str(run))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("answer:")


@pytest.mark.slow
def test_a_trained_team_serves_http(run: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rolecast.cli.main", "agent", "serve", str(run), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "What is the twin of Bak Bam?"}]}).encode()
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        deadline = time.monotonic() + 120
        while True:
            try:
                reply = json.load(urllib.request.urlopen(request, timeout=30))
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, "the server did not come up"
                time.sleep(0.5)
        assert reply["object"] == "chat.completion"
        assert reply["rolecast"]["trace"]["threads"]
    finally:
        server.terminate()
        assert server.wait(timeout=30) in (0, -15)
