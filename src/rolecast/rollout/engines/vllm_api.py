"""All that is vLLM's own: its arguments, its sampling parameters, how its weights are swapped, and what differs between its versions.

Nothing else imports vLLM. A version that no contract test runs is refused: what changes between two of them is taken silently
(a sampling parameter's default, names of weights under adapters).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from rolecast.errors import InputError
from rolecast.scratch import own

# Read when vLLM is imported, and by its engine core, which is another process.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads, and maybe a GPU in use: it must not be forked
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
}

SOCKET_FOLDER = 107 - len("/00000000-0000-0000-0000-000000000000")  # characters that the kernel takes of a socket's path


@dataclass(frozen=True, slots=True)
class Generation:
    """`swaps_under_adapters`: whether a base is swapped in place while LoRA is on, where its weights have other names."""

    version: str
    swaps_under_adapters: bool
    sampling: Mapping[str, Any] = field(default_factory=dict)  # parameters that this version has besides


LATER = {
    "watermarking": False, "trace_decode_token_ids": None, "stream_interval": None, "prompt_logprob_token_ids": None,
    "prompt_logprob_start": None,
}  # fmt: skip
GENERATIONS = (Generation("0.24", False), Generation("0.32", True, LATER))
# What would else be taken from the model's own generation config, or left out of the reply, in this process and by a server.
PLAIN: Mapping[str, Any] = {
    "n": 1, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0,
    "ignore_eos": False, "logprobs": 0, "skip_special_tokens": False, "include_stop_str_in_output": True,
}  # fmt: skip
# Every parameter of sampling that is not the request's, as this engine wants it. Those that are None switch a feature off.
FIXED: Mapping[str, Any] = {
    **PLAIN, "prompt_logprobs": None, "flat_logprobs": True, "spaces_between_special_tokens": True, "logit_bias": None, "allowed_token_ids": None,
    "bad_words": None, "structured_outputs": None, "skip_reading_prefix_cache": False, "thinking_token_budget": None,
    "repetition_detection": None, "extra_args": None, "logprob_token_ids": None,
    "routed_experts_prompt_start": 0,
}  # fmt: skip


@cache
def generation() -> Generation:
    """Of the vLLM that is installed. `InputError` for one that was never tried. Every request asks."""
    prepare()
    import vllm

    found = next((one for one in GENERATIONS if vllm.__version__.startswith(f"{one.version}.")), None)
    if found is None:
        known = " and ".join(one.version for one in GENERATIONS)
        raise InputError(f"vllm {vllm.__version__} is installed, and Rolecast is tested with {known}; install one of those")
    return found


def prepare() -> None:
    """Before vLLM is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if len(str(own())) <= SOCKET_FOLDER:
        os.environ.setdefault("VLLM_RPC_BASE_PATH", str(own()))  # it leaves its sockets behind


def start(arguments: Mapping[str, Any]) -> Any:
    """An `AsyncLLM`, from a running event loop, which it keeps to."""
    generation()
    _spell_no_logprobs()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with _temporary_files_of_this_process():
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


@cache
def _spell_no_logprobs() -> None:
    """Where a request has stop strings, vLLM's front end, which is this process, asks the tokenizer for the text of every log-prob's token too,
    one by one: more work than all else that it does for a token, and nobody here reads it. No parameter leaves it out."""
    from vllm.v1.engine.logprobs import LogprobsProcessor

    made = LogprobsProcessor.from_new_request

    def unspelt(tokenizer: object, request: Any) -> Any:
        return made(tokenizer=None, request=request)

    LogprobsProcessor.from_new_request = unspelt


@contextmanager
def _temporary_files_of_this_process() -> Iterator[None]:
    """What a process that is started meanwhile makes in its temporary directory goes with this one. An engine core leaves the file through
    which it finds its workers, `vllm_dist_…`, where it is killed."""
    before = os.environ.get("TMPDIR")
    if len(str(own())) <= SOCKET_FOLDER:
        # Kernels that it compiles are for the next engine too.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
        os.environ["TMPDIR"] = str(own())
    try:
        yield
    finally:
        os.environ.pop("TMPDIR", None)
        if before is not None:
            os.environ["TMPDIR"] = before


def shutdown(llm: Any, timeout: float) -> None:
    """Ends an engine core, and first the task that waits for its outputs: it would log the end as a crash, with a traceback."""
    if (waiting := getattr(llm, "output_handler", None)) is not None and not waiting.get_loop().is_closed():
        waiting.get_loop().call_soon_threadsafe(waiting.cancel)
    llm.shutdown(timeout=timeout)


def sampling(parameters: Mapping[str, Any]) -> Any:
    """vLLM's own record of `FIXED` with the request's `parameters`. Only the last output of a request is told."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**{**FIXED, **generation().sampling, **parameters, "output_kind": RequestOutputKind.FINAL_ONLY})


def adapter(name: str, number: int, folder: Path) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(folder.resolve()))


def swaps(llm: Any, under_adapters: bool) -> bool:
    """Whether a base's weights can take the place of the old ones. Version 0.24 looks for weights by the names that they have without
    adapters; on CPUs a head that is tied to the embeddings is a packed copy, which stays as it was."""
    if under_adapters and not generation().swaps_under_adapters:
        return False
    from vllm.platforms import current_platform

    return not (current_platform.is_cpu() and llm.model_config.hf_config.tie_word_embeddings)


async def swap(llm: Any, base: Path) -> bool:
    """Puts the weights in `base` in the place of the model's, and forgets keys and values of the old ones. Whether it did: not while
    requests are in flight."""
    await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(base.resolve())})
    return bool(await llm.reset_prefix_cache())


async def answer(llm: Any, ids: Sequence[int], parameters: Mapping[str, Any], key: str, lora: Any, urgency: int = 0) -> Any:
    """vLLM's output of one request, when it has ended. Where there is no room for all, those of a lower `urgency` go first."""
    from vllm.inputs import TokensPrompt

    prompt = TokensPrompt(prompt_token_ids=list(ids))
    outputs = [output async for output in llm.generate(prompt, sampling(parameters), key, lora_request=lora, priority=urgency)]
    return outputs[-1]


async def abort(llm: Any, key: str) -> None:
    """Ends a request: its `answer` is what was sampled until now. Nothing happens for one that has ended, or has not arrived yet."""
    await llm.abort(key)


def sampled_logprobs(output: Any) -> tuple[float, ...]:
    """Of each sampled token of a request's only reply."""
    reply = output.outputs[0]
    return tuple(entry[token].logprob for token, entry in zip(reply.token_ids, reply.logprobs, strict=True))


def prompt_logprobs(output: Any) -> tuple[float, ...]:
    """Of each token of the prompt but the first."""
    ids = output.prompt_token_ids
    return tuple(entry[token].logprob if entry else -inf for token, entry in zip(ids[1:], list(output.prompt_logprobs)[1:], strict=True))


def tells_base_apart() -> bool:
    """Whether a request without an adapter is computed as one in a batch with others. vLLM's kernels for CPUs give it the last adapter
    (they look up number -1)."""
    from vllm.platforms import current_platform

    return not current_platform.is_cpu()


def block_of(llm: Any) -> int:
    """Tokens of a block of the prefix cache: less than one is never found in it."""
    return int(llm.vllm_config.cache_config.block_size)


def dead() -> tuple[type[Exception], ...]:
    """What vLLM raises when its engine core is gone, and not a single request."""
    from vllm.v1.engine.exceptions import EngineDeadError

    return (EngineDeadError,)
