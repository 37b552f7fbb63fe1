"""A real vLLM serves what was exported, by the command that the export's guide has, and says what our engine says.

ROLECAST_VLLM_PYTHON names the interpreter of an environment with vLLM; it need not have this package.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecast.ports import Completion
from rolecast.stages.export import export
from rolecast.stages.run import Run
from tests.weed import free_ports

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "stages"))
from exported import DAC, DECOR, begun, ended, greedy, new_run

PYTHON = os.environ.get("ROLECAST_VLLM_PYTHON", "")
MESSAGES = [{"role": "system", "content": "Keep the fact."}, {"role": "user", "content": "Who is the mentor of Brol Tan?"}]
NEW = 12
# Of vLLM on CPUs; elsewhere they mean nothing.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="ROLECAST_VLLM_PYTHON names no interpreter with vLLM: what is exported was not served by one"),
]


def ours(run: Run) -> tuple[tuple[int, ...], dict[str, Completion]]:
    _, _, ids, said = greedy(run, "rl", MESSAGES, NEW)
    return ids, said


@contextmanager
def serving(out: Path) -> Iterator[str]:
    """vLLM, by the guide's command."""
    [command] = re.findall(r"```console\n\$ python (.*?)```", (out / "README.md").read_text(), re.DOTALL)
    [port] = free_ports(1)
    words = shlex.split(command.replace("\\\n", " ").replace("THIS_FOLDER", str(out)))
    log = out.with_name(f"{out.name}.log")
    environment = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **ENVIRONMENT}
    with log.open("w") as file:
        process = subprocess.Popen(
            [PYTHON, *words, "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)],
            stdout=file, stderr=file, env=environment, cwd=out.parent, start_new_session=True,
        )  # fmt: skip
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def asked(url: str, path: str, **body: Any) -> Any:
    reply = httpx.post(f"{url}/v1/{path}", json={"temperature": 0, "max_tokens": NEW, "skip_special_tokens": False, **body}, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("method", [DAC, DECOR], ids=["two adapters", "merged"])
def test_vllm_says_what_our_engine_says(method: dict[str, Any], tmp_path: Path) -> None:
    run = ended(begun(new_run(tmp_path / "run", method)))
    ids, spoken = ours(run)
    out = tmp_path / "out"
    export(run, "rl", str(out))
    slots = json.loads((out / "rolecast.json").read_text())["slots"]
    with serving(out) as url:
        served = {model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]}
        assert served == {str(out), *(slot for slot, voice in slots.items() if voice["adapter"])}
        here = {slot: slot if voice["adapter"] else str(out) for slot, voice in slots.items() if voice["model"] == "."}
        assert here
        for slot, name in here.items():
            reply = asked(url, "completions", model=name, prompt=list(ids), logprobs=0, return_token_ids=True)["choices"][0]
            assert tuple(reply["token_ids"]) == spoken[slot].ids, slot
            assert reply["logprobs"]["token_logprobs"] == pytest.approx(spoken[slot].logprobs, abs=1e-3)
            text = spoken[slot].text.rstrip("\ufffd")  # vLLM waits for the rest of a character
            assert reply["text"] == text
            chat = asked(url, "chat/completions", model=name, messages=MESSAGES, return_token_ids=True)
            assert tuple(chat["prompt_token_ids"]) == ids
            assert chat["choices"][0]["message"]["content"] == text
            stop = text[8:11]
            cut = asked(url, "completions", model=name, prompt=list(ids), stop=[stop], include_stop_str_in_output=True)["choices"][0]
            assert cut["finish_reason"] == "stop"
            assert cut["text"].endswith(stop)
