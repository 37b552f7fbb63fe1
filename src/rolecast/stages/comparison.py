"""The runs of a comparison: configs of every method and seed under one protocol.

What is named first says what all share: questions, retriever, judge, start model, evaluation. Each method keeps what is its own: prompts,
rewards, credit, objective, teacher, shape of a step. Two things are made equal: rows of SFT, and tokens that trained roles sample in RL.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.methods.registry import find
from rolecast.reading import override, read_mapping
from rolecast.stage_settings import RlConfig, SftConfig

SHARED = ("data", "retriever", "judge", "model", "engine", "learner", "rollouts", "eval", "lockstep", "threads")
GIVEN = ("name", "seed", "budget")  # keys that the comparison sets itself
NO_END = 100_000  # steps of RL: the budget ends it
Settings = dict[str, Any]  # a config as it is written


@dataclass(frozen=True, slots=True)
class Entrant:
    """A method as it takes part: by its first preset (METHOD), another one (METHOD:PRESET), or a config file (PATH.yaml)."""

    label: str
    settings: Settings

    @classmethod
    def read(cls, text: str) -> Entrant:
        if text.endswith((".yaml", ".yml")):
            return cls(Path(text).stem, read_mapping(Path(text), (), "config"))
        name, _, preset = text.partition(":")
        method = find(name)
        if not method.presets and not preset:
            return cls(name, {"method": {"name": name}})
        return cls(text.replace(":", "-"), read_mapping(Path(str(method.preset(preset))), (), "preset"))

    @property
    def config(self) -> RunConfig:
        return make_config(self.settings, self.label)

    @property
    def trained(self) -> bool:
        return find(self.config.method.name).trained


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a comparison."""

    label: str
    config: RunConfig

    @property
    def key(self) -> str:
        """The name of its folder."""
        return f"{self.label}-{self.config.seed}"


def plan(entrants: Sequence[str], seeds: Sequence[int], budget: int, overrides: Sequence[str] = ()) -> list[Member]:
    """The runs, seed by seed. An override changes a key of every method that has it.

    `InputError` for a name that is there twice, and for an override that no method has.
    """
    read = [Entrant.read(text) for text in entrants]
    once("method", [entrant.label for entrant in read])
    once("seed", seeds)
    override_all(read, overrides)
    first, *_ = read
    common = {key: first.settings[key] for key in SHARED if key in first.settings}
    if not any(text.startswith("model.max_context=") for text in overrides):
        # One context for all, as long as the method that needs most of it was made for.
        asked = [entrant.config.model.max_context for entrant in read if "max_context" in (entrant.settings.get("model") or {})]
        common["model"] = {**(common.get("model") or {}), "max_context": max(asked, default=first.config.model.max_context)}
    configs = [_configured(entrant, first, common, budget, overrides) for entrant in read]
    return [
        Member(entrant.label, config.model_copy(update={"seed": seed, "name": f"{entrant.label}-{seed}"}))
        for seed in seeds
        for entrant, config in zip(read, configs, strict=True)
    ]


def once(what: str, named: Sequence[Any]) -> None:
    """Raises InputError where nothing is named, or something twice."""
    if not named:
        raise InputError(f"name at least one {what}")
    if twice := [one for one in named if named.count(one) > 1]:
        raise InputError(f"{what} {twice[0]} is named twice; name each once")


def override_all(entrants: Sequence[Entrant], overrides: Sequence[str]) -> None:
    """Changes a key of every method that has it; `InputError` where none has."""
    for text in overrides:
        part, _, rest = text.partition("=")[0].partition(".")
        if part in GIVEN:
            raise InputError(f"override {text!r}: a comparison sets {part} of its runs itself")
        those = [entrant for entrant in entrants if _has(entrant.config, part, rest.partition(".")[0])]
        if not those:
            raise InputError(f"override {text!r}: none of {', '.join(entrant.label for entrant in entrants)} has that key")
        for entrant in those:
            override(entrant.settings, text)


def _has(config: RunConfig, part: str, name: str) -> bool:
    """Whether its method has this key, or its schedule this stage; what is no method's own all have."""
    return name in type(config.method).model_fields if part == "method" else name in config.stages if part == "stages" else True


def _configured(entrant: Entrant, first: Entrant, common: Settings, budget: int, overrides: Sequence[str]) -> RunConfig:
    method = {"prompts": first.config.method.prompts, **entrant.settings["method"]}
    stages = _stages(entrant, first.config, overrides)
    made = make_config({**common, "method": method, "stages": stages, **({"budget": budget} if entrant.trained else {})}, entrant.label)
    _check_schedules(entrant.label, made)
    return made


def _stages(entrant: Entrant, shared: RunConfig, overrides: Sequence[str]) -> Settings:
    """Its own stages, with the shared rows of SFT, split as its own are, and RL that goes on until the budget is spent."""
    own: Settings = {name: stage.model_dump(mode="json", exclude_unset=True) for name, stage in entrant.config.stages.items()}
    steps = {name: stage.steps for name, stage in _sft(entrant.config).items()}
    left = total = sum(stage.steps * stage.batch for stage in _sft(shared).values())
    drills = sum(stage.drills * stage.batch for stage in _sft(shared).values())
    for number, (name, stage) in enumerate(_sft(entrant.config).items()):
        rows = left if number == len(steps) - 1 else total * steps[name] // max(1, sum(steps.values()))
        left -= rows
        taught = own[name] if entrant.trained or own[name] else _learning(shared)
        batch = taught.get("batch", stage.batch)
        own[name] = {**taught, "batch": batch, "steps": rows // batch, "drills": min(drills, rows) // batch if number == 0 else 0}
        if not entrant.trained and shared.model.path is not None:
            own[name] = {"steps": 0}
    for name, settings in entrant.config.stages.items():
        if isinstance(settings, RlConfig) and not any(text.startswith(f"stages.{name}.steps=") for text in overrides):
            own[name]["steps"] = NO_END
    return own


def _learning(shared: RunConfig) -> Settings:
    """How an untrained method without settings of its own is taught: as the first one's first SFT, without its teacher's errors.

    Only a model from scratch is, which says nothing before it was taught the form.
    """
    for stage in _sft(shared).values():
        return stage.model_dump(mode="json", exclude_unset=True, include={"batch", "lr", "optimizer", "invented", "max_tokens"})
    return {}


def _sft(config: RunConfig) -> dict[str, SftConfig]:
    return {name: stage for name, stage in config.stages.items() if isinstance(stage, SftConfig)}


def _check_schedules(label: str, config: RunConfig) -> None:
    for name, stage in config.stages.items():
        if not isinstance(stage, RlConfig) or stage.steps != NO_END:
            continue
        named = {"optimizer": stage.optimizer, **{f"optimizers.{slot}": of for slot, of in stage.optimizers.items()}}
        for key in (key for key, of in named.items() if of.schedule != "constant"):
            where = f"stages.{name}.{key}.schedule"
            raise InputError(
                f"{label}: {where} decays over the stage's steps, and a budget of tokens ends it before; add --set {where}=constant"
            )


def sft_rows(config: RunConfig) -> int:
    """Rows that SFT learns from, drills among them."""
    return sum(stage.steps * stage.batch for stage in _sft(config).values())
