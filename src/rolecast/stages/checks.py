"""What cannot work is said before any work: a run's config against where it runs, with what, and on which data. Needs no torch,
unless the run starts from a model of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path

from rolecast.config import RunConfig
from rolecast.data.records import read_questions
from rolecast.errors import InputError
from rolecast.installed import MissingPackageError
from rolecast.judge.lexical import LEXICAL, LexicalJudge
from rolecast.methods.registry import make_method
from rolecast.rollout.engines.settings import VllmConfig
from rolecast.schedule import find
from rolecast.stage_settings import SftConfig, StageConfig, TrainedConfig
from rolecast.store.uri import S3
from rolecast.types import TRAIN, Question

log = logging.getLogger(__name__)
TRIED = 2  # processes that may share whatever there is, to try out that several train together


def check_run(config: RunConfig, location: Path | str, stage: str | None = None) -> None:
    """Raises InputError for what would only be noticed after hours; warns of what would only be noticed in the results.

    `stage`: the one that is to be trained; by default all of them.
    """
    if not config.schedule:
        raise InputError(f"method {config.method.name} is not trained, so it has no pipeline; see `rolecast methods`")
    names = [stage.name for stage in (config.schedule if stage is None else [find(config.schedule, stage)])]
    trained = [of for of in config.schedule if of.name in names and _trains(config.stages[of.name])]
    scored = [of.name for of in trained if of.kind == "rl"]
    sampled = [*scored, *(of.name for of in config.schedule if of.name in names and of.kind == "rollout")]
    if config.rollouts == "workers" and sampled and not str(location).startswith(S3):
        raise InputError(
            f"rollouts: workers find stage {sampled[0]} through a store, and {location} is a folder; give the run as "
            "s3://bucket/prefix/NAME, or set rollouts to local"
        )
    _check_worlds(config, [of.name for of in trained])
    _check_demonstrations(config, str(location), [of.name for of in trained])
    _check_model(config, str(location), [of.name for of in trained])
    if scored:
        _check_judged(config)
    _warn_of_shared_questions(config)
    _warn_of_drills(config, [of.name for of in trained])


def _trains(settings: StageConfig) -> bool:
    """Not if its model is taken from another run."""
    return isinstance(settings, TrainedConfig) and bool(settings.steps) and not settings.model


def require_engine(config: RunConfig, stage: str | None = None) -> None:
    """On the machine that samples, before anything is trained there. `stage`: the one that is trained now; by default all of them, which are
    evaluated here too."""
    if not isinstance(config.engine, VllmConfig):
        return
    played = config.rollouts == "local" and stage is not None and find(config.schedule, stage).kind != "sft"
    if (stage is None or played) and find_spec("vllm") is None:
        raise MissingPackageError("vllm", "vllm")
    if config.model.lora is not None:
        from rolecast.rollout.engines.vllm_adapters import check_precision

        check_precision(config.engine.dtype or config.model.dtype)


def require_ranks(config: RunConfig, procs: int | None = None) -> None:
    """DeepSpeed works among ranks, also if there is one. `procs`: that will be started, at most one for each GPU or core that is here."""
    if config.learner.name == "deepspeed" and procs is None and "RANK" not in os.environ:
        raise InputError("learner.name=deepspeed trains in processes that are started together: add --procs N, one for each GPU")
    if procs is not None and procs > 1:
        from rolecast.devices import count

        found, what = count()
        if procs > max(found, TRIED):
            raise InputError(f"--procs {procs}: this machine has {found} {what}; give at most {max(found, TRIED)}")


def _check_worlds(config: RunConfig, stages: list[str]) -> None:
    for name in stages:
        settings = config.stages[name]
        taught = isinstance(settings, SftConfig) and find(config.schedule, name).data == TRAIN and settings.demonstrations is None
        if config.data.world is None and isinstance(settings, SftConfig) and taught and not settings.invented:
            raise InputError(
                f"stages.{name} imitates a scripted teacher on invented worlds, and this run has data of its own; set stages.{name} to null to "
                f"start from the model as it is, stages.{name}.demonstrations to episodes on it (`rolecast data demonstrate`), or "
                f"stages.{name}.invented to true to teach it the form of replies there"
            )


def _check_demonstrations(config: RunConfig, location: str, stages: Sequence[str]) -> None:
    """On a cluster they may lie where only its jobs see them."""
    for name in stages:
        settings = config.stages[name]
        if not isinstance(settings, SftConfig) or settings.demonstrations is None:
            continue
        if find(config.schedule, name).data != TRAIN:
            raise InputError(f"stages.{name} learns what stage {find(config.schedule, name).data} keeps; leave demonstrations out")
        if not location.startswith(S3) or Path(settings.demonstrations).exists():
            from rolecast.teachers.demonstrations import demonstrations_at

            demonstrations_at(settings.demonstrations)


def _check_model(config: RunConfig, location: str, stages: Sequence[str]) -> None:
    """On a cluster the model may lie where only its jobs see it."""
    if config.model.path is None or (location.startswith(S3) and not Path(config.model.path).exists()):
        return
    from rolecast.rollout.render import Renderer
    from rolecast.weights.models import check_model, read_tokenizer

    path = Path(config.model.path)
    check_model(path)
    try:
        renderer = Renderer(read_tokenizer(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _check_words(config, stages, set(renderer.tokenizer.get_vocab()))


def _check_words(config: RunConfig, stages: Sequence[str], vocabulary: Collection[str]) -> None:
    """What is written for the demo's small model is not shown to another one: it would learn to say "next fact" for an answer."""
    from rolecast.world.tokenizer import demo_tokenizer

    if set(demo_tokenizer().get_vocab()) <= set(vocabulary):
        return
    for name in stages:
        settings = config.stages[name]
        if not isinstance(settings, SftConfig) or find(config.schedule, name).data != TRAIN or settings.demonstrations is not None:
            continue
        if settings.drills:
            raise InputError(
                f"stages.{name}.drills are reading drills in the demo's invented words, and {config.model.path} is a language model; set them to 0"
            )
        if config.method.prompts == "compact":
            raise InputError(
                f"stages.{name} would teach {config.model.path} the shorthand of the demo's small model; set method.prompts to instruct, whose "
                "teacher writes sentences"
            )


def _check_judged(config: RunConfig) -> None:
    """The lexical judge reads gold chains. Any other may know what to say."""
    judged = [kind.name for kind in make_method(config.method).judged]
    if not judged or config.data.train is None or config.judge.model != LEXICAL.model:
        return
    if not Path(config.data.train).is_file():  # which the first step says, where it may be there
        return
    judge, questions = LexicalJudge(), read_questions(Path(config.data.train))
    mute = {kind: sum(not judge.scores(kind, question.gold) for question in questions) for kind in judged}
    kind, count = max(mute.items(), key=lambda item: item[1])
    without = make_method(config.method).unjudged
    choice = "set judge.model to a model that needs none (see `rolecast judge serve`)" + (f", or {without}" if without else "")
    if count == len(questions):
        raise InputError(
            f"{config.data.train}: no question has a gold chain, so the lexical judge gives {kind} no score, and RL would learn nothing from "
            f"it; {choice}"
        )
    if count:
        log.warning(
            "%s: %d of %d questions have no gold chain; the lexical judge leaves %s unscored there, so roles that it judges learn nothing from "
            "them; %s",
            config.data.train,
            count,
            len(questions),
            kind,
            choice,
        )


def _warn_of_shared_questions(config: RunConfig) -> None:
    test = _questions_at(config.data.test)
    for split in ("train", "dev") if test else ():
        other = _questions_at(getattr(config.data, split))
        ids, texts = {question.id for question in other}, {question.text for question in other}
        if count := sum(question.id in ids or question.text in texts for question in test):
            log.warning(
                "%d of %d questions of data.test are in data.%s too (the same id or text): results on them say nothing about others",
                count,
                len(test),
                split,
            )


def _questions_at(file: str | None) -> list[Question]:
    """None where the file is not here, but where the run's steps see it."""
    return read_questions(Path(file)) if file and Path(file).is_file() else []


def _warn_of_drills(config: RunConfig, stages: list[str]) -> None:
    for name in stages:
        settings = config.stages[name]
        if isinstance(settings, SftConfig) and settings.drills >= settings.steps:
            log.warning(
                "stages.%s: all %d steps are reading drills (drills = %d), so no turn of a role is learned",
                name,
                settings.steps,
                settings.drills,
            )
