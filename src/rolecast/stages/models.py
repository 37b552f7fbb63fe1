"""A team that no run trained: every role speaks with one model directory, or through one endpoint. For evaluation alone, and for questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rolecast.config import RunConfig, make_config
from rolecast.devices import device
from rolecast.errors import InputError
from rolecast.externals import ExternalConfig
from rolecast.methods.base import Method
from rolecast.methods.registry import make_method
from rolecast.reading import describe, read_mapping
from rolecast.rollout.engines.external import Nobody, OwnEngine
from rolecast.rollout.engines.factory import disk_engine, model_engine, routed
from rolecast.rollout.render import Renderer
from rolecast.stages.agreement import check_model_agrees
from rolecast.types import external
from rolecast.weights.canary import canary
from rolecast.weights.models import CPU, DTYPES, check_model, read_model, read_tokenizer
from rolecast.weights.placed import place_model
from rolecast.weights.team import Casting, assemble

ENDPOINT = "model"  # the name of the one endpoint
CONTEXT = 4096  # tokens of a role's context at most, unless the config says otherwise


@dataclass(frozen=True, slots=True)
class Speaker:
    """`place`: a Hugging Face model directory, or an endpoint's address up to and with /v1; of an endpoint, `name` is its model's there,
    `tokenizer` a directory whose tokenizer counts tokens, and `key_env` the variable with its key."""

    place: str
    name: str = ""
    tokenizer: str = ""
    key_env: str | None = None

    @property
    def outside(self) -> bool:
        return "://" in self.place

    @property
    def folder(self) -> Path:
        """Where the tokenizer is, and the model of a directory."""
        return Path(self.tokenizer if self.outside else self.place)

    def check(self) -> None:
        """InputError for what is missing, before anything is read."""
        if self.outside and not self.name:
            raise InputError(f"{self.place} is an endpoint: name the model that it serves by --model-name")
        if self.outside and not self.tokenizer:
            raise InputError(f"{self.place} is an endpoint: give a model directory whose tokenizer counts its tokens by --tokenizer")
        if not self.outside and (self.name or self.tokenizer or self.key_env):
            raise InputError(f"{self.place} is a directory: --model-name, --tokenizer and --key-env are an endpoint's; leave them out")
        if not self.folder.is_dir():
            raise InputError(f"{self.folder}: no such folder; give a Hugging Face model directory, or an endpoint's address ending in /v1")

    def identity(self) -> Mapping[str, Any]:
        """What tells one model from another: of a directory its files' names, sizes and times."""
        if self.outside:
            return {"endpoint": self.place, "model": self.name}
        files = sorted(file for file in self.folder.rglob("*") if file.is_file())
        return {"files": [[str(file.relative_to(self.folder)), file.stat().st_size, file.stat().st_mtime_ns] for file in files]}


def config_for(method: str, speaker: Speaker, file: Path | None, overrides: Sequence[str], settings: Mapping[str, Any]) -> RunConfig:
    """A config of this method in which nothing is trained: from a file and overrides, as those of runs, and `settings` that go before."""
    data = read_mapping(file, overrides, "config")
    own = data.get("method")
    own = own if isinstance(own, dict) else {}
    if own.get("name", method) != method:
        raise InputError(f"{file}: is a config of {own['name']}, and --method says {method}; name one of them")
    data["method"] = {**own, "name": method}
    model = data.get("model") if isinstance(data.get("model"), dict) else {}
    place = {} if speaker.outside else {"path": speaker.place}
    data["model"] = {"max_context": _context(speaker), **(model or {}), **place}
    for name, value in settings.items():
        data[name] = {**(data.get(name) or {}), **value} if isinstance(value, Mapping) else value
    return make_config(data, str(file) if file is not None else "the options")


def _context(speaker: Speaker) -> int:
    """What the model can read, at most `CONTEXT`."""
    try:
        said = json.loads((speaker.folder / "config.json").read_text())
        most = said.get("max_position_embeddings") or said.get("text_config", {}).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        most = None
    return min(most, CONTEXT) if isinstance(most, int) and most >= 32 else CONTEXT


def played_method(config: RunConfig, speaker: Speaker) -> Method:
    """The whole method, every role with this speaker, unless the config casts it otherwise."""
    method = make_method(config.method).whole()
    cast = {role: external(ENDPOINT) for role in method.roles} if speaker.outside else {}
    slots = {**cast, **config.cast}
    played = method.whole()
    played.roles = {name: replace(role, slot=slots.get(name, role.slot)) for name, role in method.roles.items()}
    return played


def speaking_engine(config: RunConfig, method: Method, speaker: Speaker, version: str) -> tuple[OwnEngine, Renderer]:
    """The engine, not entered yet, and what renders for it. Its user closes it."""
    speaker.check()
    renderer = Renderer(read_tokenizer(speaker.folder), method.tags)
    endpoints = config.externals_of(method) if not speaker.outside else {**_known(config, method), ENDPOINT: _endpoint(speaker)}
    if speaker.outside:
        return routed(Nobody(version), renderer, endpoints), renderer
    check_model(speaker.folder)
    disk = disk_engine(config, renderer)
    place = device() if disk is None else CPU
    model = read_model(speaker.folder, DTYPES[config.model.dtype], place)
    if disk is None:
        check_model_agrees(model, renderer, config.model.max_context, False)
    team = assemble(model, renderer.tokenizer, Casting(method.spoken), start=speaker.folder)
    speakers = {slot: team.speaker(slot) for slot in method.spoken}
    if disk is None:
        return routed(model_engine(config, speakers, renderer, version, config.lockstep), renderer, endpoints), renderer
    canaries = {slot: canary(speak(), team.tokenizer) for slot, speak in speakers.items()}
    del team, speakers, model  # as large as what the engine is about to load
    disk.load(place_model(speaker.folder, method.spoken, version, canaries))
    return routed(disk, renderer, endpoints), renderer


def _known(config: RunConfig, method: Method) -> dict[str, ExternalConfig]:
    return {name: config.externals[name] for name in sorted(method.endpoints - {ENDPOINT})}


def _endpoint(speaker: Speaker) -> ExternalConfig:
    try:
        return ExternalConfig(url=speaker.place, model=speaker.name, key_env=speaker.key_env)
    except ValidationError as error:
        raise InputError(f"--model {speaker.place}: {describe(error)}") from None
