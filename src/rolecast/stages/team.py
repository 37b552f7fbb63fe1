"""Puts a run's parts together: models by stage, retriever, judge, questions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from rolecast.config import RunConfig
from rolecast.data.records import read_questions
from rolecast.devices import device
from rolecast.errors import InputError
from rolecast.methods.base import Method
from rolecast.methods.registry import make_method
from rolecast.rollout.render import Renderer
from rolecast.stage_settings import TrainedConfig
from rolecast.stages.agreement import check_model_agrees
from rolecast.stages.run import Run
from rolecast.store.artifact import verify, writing
from rolecast.types import TRAIN, Question, Slot, Stage
from rolecast.weights.adapters import is_adapter, merge
from rolecast.weights.canary import canary, differs
from rolecast.weights.models import CPU, DTYPES, check_model, read_model, read_tokenizer
from rolecast.weights.team import BASE, FROZEN, MERGED, Casting, Team, assemble, require_finite, slots_in
from rolecast.world.grammar import crowded_lexicon
from rolecast.world.throwaway import CROWDED
from rolecast.world.tokenizer import demo_tokenizer

Speakers = Mapping[Slot, Callable[[], PreTrainedModel]]
QUESTIONS = "questions"  # the kind of an artifact


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


def first_model(config: RunConfig, place: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that the run starts from: a directory, or one from scratch."""
    if config.model.path is not None:
        path = Path(config.model.path)
        check_model(path)
        model, tokenizer = read_model(path, DTYPES[config.model.dtype], place), read_tokenizer(path)
        if place != CPU or device() == CPU:  # else it is read and not run
            packed = any(isinstance(stage, TrainedConfig) and stage.packing != "off" for stage in config.stages.values())
            check_model_agrees(model, Renderer(tokenizer), config.model.max_context, packed)
        return model, tokenizer
    method = make_method(config.method)
    words = crowded_lexicon() if config.data.thrown_away == CROWDED else ()
    tokenizer = demo_tokenizer((*method.words, *words), method.tags)
    scratch = config.model.scratch
    torch.manual_seed(config.seed)
    scratched = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=scratch.hidden, intermediate_size=scratch.feed_forward,
            num_hidden_layers=scratch.layers, num_attention_heads=scratch.heads, num_key_value_heads=scratch.heads,
            head_dim=scratch.head_dim,
            max_position_embeddings=config.model.max_context, tie_word_embeddings=False, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    return scratched.to(place, DTYPES[config.model.dtype]), tokenizer


def start_of(run: Run, stage: Stage, place: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Path | None]:
    """What a stage starts from: the base, its tokenizer, and the folder with what is not part of the base."""
    if not stage.start:
        return *first_model(run.config, place), None
    folder = run.model(stage.start)
    check_model(folder)
    return read_model(folder, DTYPES[run.config.model.dtype], place), read_tokenizer(folder), folder


def start_folder(run: Run, start: str) -> Path:
    """Where the model of stage `start` lies, or the run's own first one, which is written there if need be."""
    if start:
        require_model(run, start)
        return run.model(start)
    if not run.has(run.base):
        model, tokenizer = first_model(run.config, CPU)
        with writing(run.base, "model", {**run.made}) as partial:
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
    return run.base


def casting_of(method: Method, stage: Stage, training: bool = True) -> Casting:
    """What the stage's team consists of; without `training` only what its roles speak with. `method`: as it is in the stage."""
    spoken = method.spoken
    if not training:
        return Casting(spoken)
    anchored = any(objective.kl is not None for objective in stage.objectives)
    return Casting(spoken, stage.trained, stage.critics, anchored or FROZEN in spoken)


def training_team(run: Run, method: Method, stage: Stage, saved: Path | None, place: torch.device | None = None) -> Team:
    """The team that a stage trains, from the stage's start, or as it was `saved` in a checkpoint."""
    base, tokenizer, folder = start_of(run, stage, place or device())
    c, settings = run.config, run.config.stages[stage.name]
    lora = None if isinstance(settings, TrainedConfig) and not settings.adapters else c.model.lora
    return assemble(base, tokenizer, casting_of(method, stage), start=folder, saved=saved, lora=lora, seed=c.seed)


def other_base(stage: Stage, spoken: Collection[Slot]) -> bool:
    """Whether frozen roles speak with another model than the stage's: it merged what it trained into its own."""
    return FROZEN in spoken and stage.kind == "rl" and bool(stage.merges)


def finished_team(run: Run, method: Method, stage: Stage, place: torch.device | None = None) -> tuple[Team, Speakers]:
    """The team of a stage that has ended, and who speaks for each slot. A frozen role is what it was in training: the stage's start."""
    require_model(run, stage.name)
    folder = run.model(stage.name)
    casting = casting_of(method, stage, training=False)
    place = place or device()
    team = assemble(read_model(folder, DTYPES[run.config.model.dtype], place), read_tokenizer(folder), casting, start=folder)
    speakers: dict[Slot, Callable[[], PreTrainedModel]] = {slot: team.speaker(slot) for slot in casting.spoken}
    if other_base(stage, casting.spoken):
        if stage.start:
            require_model(run, stage.start)
        base, tokenizer, start = start_of(run, stage, place)
        speakers[FROZEN] = assemble(base, tokenizer, Casting(), start=start).speaker(FROZEN)
    return team, speakers


def write_model(run: Run, stage: Stage, trained: Path, out: Path) -> None:
    """The stage's model, in an artifact in the making: a whole model with what the stage merges, and other slots beside it in `slots`.

    `trained`: a folder with the slots as they were trained. An adapter is merged in float32 only, and the result must compute what
    base and adapter did; in a narrower dtype it stays apart, as the base's own adapter.
    """
    whole = [slot for slot in stage.merges if not is_adapter(trained / "slots" / slot)]
    if whole:
        shutil.copytree(trained / "slots" / whole[-1], out, dirs_exist_ok=True)
        read_tokenizer(trained).save_pretrained(out)
        start = run.model(stage.start) if stage.start else None
    else:
        base, tokenizer, start = start_of(run, stage, CPU)
        _merge(base, tokenizer, stage, start, trained, out)
    kept = [*((slot, trained) for slot in stage.trained if slot not in stage.merges)]
    kept += [(slot, start) for slot in slots_in(start) if slot not in (BASE, *stage.trained)] if start is not None else []
    for slot, root in kept:
        shutil.copytree(root / "slots" / slot, out / "slots" / slot)


def _merge(base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stage: Stage, start: Path | None, trained: Path, out: Path) -> None:
    apart = start / "slots" / BASE if start is not None and (start / "slots" / BASE).is_dir() else None
    if base.dtype == torch.float32:
        for slot in stage.merges:
            team = assemble(base, tokenizer, Casting(frozenset({slot})), saved=trained)
            before = canary(team.model(slot), tokenizer)
            merge(base, slot)
            if off := differs(before, canary(base, tokenizer), base.dtype):
                raise InputError(f"merging slot {slot} changes the model: log-probs of a probe move by {off:.1e}; leave it out of merges")
    elif stage.merges:
        apart = trained / "slots" / stage.merges[-1]
    for slot in stage.merges:
        shutil.copytree(trained / "slots" / slot, out / MERGED / slot)
    if apart is not None:
        shutil.copytree(apart, out / "slots" / BASE)
    require_finite(base.state_dict(), f"the model of stage {stage.name}")
    base.save_pretrained(out)
    tokenizer.save_pretrained(out)


def require_model(run: Run, stage: str) -> None:
    """Raises InputError if the stage has not been trained yet, ArtifactError if its model is damaged."""
    if not run.has(run.model(stage)):
        raise InputError(f"{run.place} has no {stage} model yet; run `rolecast train {run.place} {stage}` first")
    verify(run.model(stage), "model")


def require_questions(run: Run, stage: str) -> None:
    """Raises InputError if the rollout stage has not been played yet, ArtifactError if its questions are damaged."""
    if not run.has(run.questions(stage)):
        raise InputError(f"{run.place} has no questions of {stage} yet; run `rolecast train {run.place} {stage}` first")
    verify(run.questions(stage), QUESTIONS)


def load_questions(run: Run, split: str, data: str = TRAIN) -> list[Question]:
    """`data`: whose questions, as a stage names them."""
    if data != TRAIN:
        run.has(run.questions(data))
        return read_questions(run.questions(data) / f"{split}.jsonl")
    given = getattr(run.config.data, split)
    if not given:
        run.has(run.world)
        verify(run.world, "world")
    return read_questions(Path(given) if given else run.world / f"{split}.jsonl")
