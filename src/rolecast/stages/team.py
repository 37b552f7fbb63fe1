"""Puts a team together from a run's config: method, model, tokenizer, retriever, judge."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from rolecast.config import ModelConfig, RunConfig
from rolecast.data.records import read_questions
from rolecast.devices import device
from rolecast.errors import InputError
from rolecast.judge.client import HttpJudge
from rolecast.judge.lexical import LexicalJudge
from rolecast.learner.adapters import add_adapter, load_adapter
from rolecast.ports import Judge, Retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import LocalRetriever
from rolecast.rollout.render import Renderer
from rolecast.stages.run import Run
from rolecast.store.artifact import verify
from rolecast.types import Question
from rolecast.weights.agreement import check_model_agrees
from rolecast.world.tokenizer import demo_tokenizer

CPU = torch.device("cpu")


def prepare_torch(config: RunConfig) -> None:
    """Threads and determinism. Must run before the first tensor work of a stage."""
    disable_progress_bar()  # of loading and saving; a stage has its own
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed, which transformers imports where it is there, warns of it
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(device())
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS wants for results that repeat
    # Some CUDA kernels (cumsum) have no deterministic form: there a run in lockstep is told so, and goes on.
    torch.use_deterministic_algorithms(config.lockstep, warn_only=on_gpu or not config.lockstep)


def start_model(config: RunConfig, place: torch.device | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that training starts from: a directory, or one from scratch. `place`: as in `load_model`.

    InputError for a model that engine and learner would not compute alike.
    """
    if config.model.path is not None:
        given, its_tokenizer = load_model(Path(config.model.path), config.model, place)
        if place is None:  # else it is read and not run
            check_model_agrees(given, Renderer(its_tokenizer), config.model.max_context)
        return given, its_tokenizer
    tokenizer = demo_tokenizer()
    scratch = config.model.scratch
    torch.manual_seed(config.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=scratch.hidden, intermediate_size=scratch.feed_forward,
            num_hidden_layers=scratch.layers, num_attention_heads=scratch.heads, num_key_value_heads=scratch.heads,
            head_dim=scratch.head_dim,
            max_position_embeddings=config.model.max_context, tie_word_embeddings=False, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    return model.to(place or device(), _dtype(config.model)), tokenizer


def trained_model(
    config: RunConfig,
    start: Callable[[torch.device | None], tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    saved: Path | None,
    place: torch.device | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """What a stage trains: the model of `start`, or what was `saved` of it. With LoRA it is an adapter over that model.

    `start` takes the `place`, which is as in `load_model`.
    """
    lora = config.model.lora
    if lora is None:
        return load_model(saved, config.model, place) if saved else start(place)
    model, tokenizer = start(place)
    if saved:
        load_adapter(model, saved, "shared")
    else:
        add_adapter(model, "shared", lora, config.seed)
    return model, tokenizer


def require_model(run: Run, stage: str) -> None:
    """Raises InputError if the stage has not been trained yet, ArtifactError if its model is damaged."""
    if not run.has(run.model(stage)):
        raise InputError(f"{run.path} has no {stage} model yet; run `rolecast {stage} {run.path}` first")
    verify(run.model(stage), "model")


def check_model(path: Path) -> None:
    """Raises InputError unless `path` looks like a model directory with a tokenizer."""
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is no model directory: it has no config.json")
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise InputError(f"{path} has no tokenizer; save one beside the model (tokenizer.save_pretrained)")


def load_model(path: Path, config: ModelConfig, place: torch.device | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """`place`: CPU, for weights that are read and not run; by default the process's device."""
    check_model(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=_dtype(config)).to(place or device())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return model, tokenizer


def _dtype(config: ModelConfig) -> torch.dtype:
    return torch.float32 if config.dtype == "float32" else torch.bfloat16


def load_questions(run: Run, split: str) -> list[Question]:
    given = getattr(run.config.data, split)
    if not given:
        run.has(run.world)
    return read_questions(Path(given) if given else run.world / f"{split}.jsonl")


def open_retriever(run: Run) -> Retriever:
    """The service at ROLECAST_RETRIEVER_URL, if there is one; else the run's own index."""
    if url := os.environ.get("ROLECAST_RETRIEVER_URL"):
        return HttpRetriever(url)
    run.has(run.index)
    return LocalRetriever.open(run.index, run.config.retriever.kind)


def open_judge() -> Judge:
    """The service at ROLECAST_JUDGE_URL, if there is one; else the lexical judge."""
    url = os.environ.get("ROLECAST_JUDGE_URL")
    return HttpJudge(url) if url else LexicalJudge()
