"""vLLM over the tiny Llama, where it can be imported: an interpreter of its own runs these tests (ROLECAST_VLLM_PYTHON)."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from rolecast.rollout.engines.settings import VllmConfig, VllmHttpConfig
from rolecast.rollout.engines.vllm import VllmEngine
from rolecast.rollout.engines.vllm_api import ENVIRONMENT
from rolecast.rollout.engines.vllm_http import VllmHttpEngine
from rolecast.types import Slot
from rolecast.weights.canary import Canary, canary, differs
from rolecast.weights.models import DTYPES
from rolecast.weights.placed import Placed
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import FROZEN, Casting, Team, assemble
from tests.tiny import RENDERER, TOKENIZER, tiny_model

HERE = importlib.util.find_spec("vllm") is not None
CONTEXT = 300  # two blocks of the prefix cache, and room for replies
DTYPE = "bfloat16" if torch.cuda.is_available() else "float32"  # adapters are not played in float32 on a GPU
CONFIG = VllmConfig(name="vllm", eager=True, max_batch=32, memory=0.1, seeds=True)
LORA = LoraConfig(rank=4, alpha=16)


needs_vllm = [
    pytest.mark.slow, pytest.mark.skipif(not HERE, reason="vllm cannot be imported here; tests/contract/test_vllm.py starts an interpreter that can")
]  # fmt: skip


def llama(seed: int, tied: bool = False) -> LlamaForCausalLM:
    """With heads as wide as vLLM's kernels for CPUs want them, and attention that matters. `tied`: its head is its embeddings."""
    model = tiny_model(seed, scale=8.0, head_dim=32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.mul_(8.0)
            layer.self_attn.o_proj.weight.mul_(8.0)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 1.1)
    return model


def close(found: Sequence[float], wanted: torch.Tensor) -> bool:
    """Whether two engines explain the difference of these log-probs."""
    return not differs(Canary((), tuple(found)), Canary((), tuple(wanted.tolist())), DTYPES[DTYPE])


def saved(model: LlamaForCausalLM, folder: Path) -> Path:
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@contextmanager
def running(engine: VllmEngine) -> Iterator[VllmEngine]:
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def one_model(folder: Path) -> Iterator[VllmEngine]:
    """A whole model that speaks for the slot `shared`."""
    model = llama(0)
    with running(VllmEngine(CONFIG, RENDERER, CONTEXT, DTYPE)) as engine:
        engine.load(Placed("v1", saved(model, folder), folder, {"shared": None}, {"shared": canary(model, TOKENIZER)}))
        yield engine


class Version:
    """Adapters for some slots over one base, drawn anew from `seed`, as a learner writes them."""

    def __init__(self, folder: Path, base: int, seed: int, slots: tuple[Slot, ...] = ("planner", "answerer"), tied: bool = False) -> None:
        self.slots, self.base = slots, saved(llama(base, tied), folder / f"base{base}{tied}")
        self.folder, self.name = folder / f"v{base}.{seed}", f"run/0.{seed}"
        self.team: Team = assemble(llama(base, tied), TOKENIZER, Casting(frozenset({*slots, FROZEN}), slots), lora=LORA, seed=seed)
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.team.named_parameters():
                if "lora_B" in name:
                    weight.normal_(0, 0.5)
        self.team.save(slots, self.folder)

    def placed(self, **other: Mapping[Slot, Path | None]) -> Placed:
        adapters: dict[Slot, Path | None] = {slot: self.folder / "slots" / slot for slot in self.slots}
        return Placed(self.name, self.base, self.base, {**adapters, FROZEN: None, **other.get("adapters", {})}, self.canaries())

    def canaries(self) -> dict[Slot, Canary]:
        return {slot: canary(self.team.model(slot), TOKENIZER) for slot in (*self.slots, FROZEN)}


FLAGS = (  # those of docs/engines.md, for a small model
    f"--dtype={DTYPE}", "--enforce-eager", "--generation-config=vllm", "--logprobs-mode=processed_logprobs", "--enable-prefix-caching",
    "--max-model-len=300", "--gpu-memory-utilization=0.1", "--enable-lora", "--max-loras=4", "--max-lora-rank=8",
)  # fmt: skip


@contextmanager
def server(model: Path, log: Path) -> Iterator[str]:
    """A vLLM server of `model`, at the address that is given, with what it said in `log`."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", "--served-model-name=base", "--host=127.0.0.1",
        f"--port={port}", *FLAGS,
    ]  # fmt: skip
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 240
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the server was not ready within 240 s"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


@contextmanager
def over_http(folder: Path) -> Iterator[VllmHttpEngine]:
    """A server whose base speaks for the slot `shared`."""
    model = llama(0)
    with server(saved(model, folder / "model"), folder / "log") as url:
        engine = VllmHttpEngine(VllmHttpConfig(name="vllm_http", url=url, model="base"), RENDERER, DTYPE)
        placed = Placed("v1", folder / "model", folder / "model", {"shared": None}, {"shared": canary(model, TOKENIZER)})
        engine.load(placed)
        yield engine
