"""What others can load without this package: a stage's model, or its adapters, with the prompts that its roles were trained on.

Whole weights stand at the top or in `models/SLOT`, adapters in `adapters/SLOT`, in the forms of transformers and peft. What a slot
speaks with is what `finished_team` would have spoken with. An adapter is never merged here: rounded, it would be another model.
"""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import GenerationConfig, PreTrainedTokenizerBase

from rolecast.config import RunConfig
from rolecast.errors import ArtifactError, InputError
from rolecast.methods.base import Method
from rolecast.rollout.render import Renderer
from rolecast.schedule import find
from rolecast.stages.belonging import require_own
from rolecast.stages.export_text import Voice, about, guide, prompt_files, prompts_guide
from rolecast.stages.run import Run
from rolecast.stages.serve import trained_stage
from rolecast.stages.team import first_model, require_model
from rolecast.store.artifact import MANIFEST, committed, parse_manifest, verify, write_text, writing
from rolecast.store.uri import S3, making
from rolecast.types import Slot, Stage
from rolecast.weights.adapters import CONFIG, WEIGHTS, is_adapter
from rolecast.weights.models import CPU, read_tokenizer
from rolecast.weights.team import BASE, FROZEN, MERGED

KIND = "export"
TOP = "."  # the folder itself


@dataclass(frozen=True, slots=True)
class Source:
    """What a slot speaks with, as the run has it. `weights`: a model's folder, None for what the run starts from."""

    weights: Path | None
    adapter: Path | None = None


def export(run: Run, stage: str | None, out: str, adapters: bool = False) -> str:
    """Writes the model of `stage` (by default the last that was trained), or with `adapters` those alone, to a folder or s3://….

    Nothing is left of one that fails. Raises InputError where something else than an export of this package lies at `out`.
    """
    of = find(run.config.schedule, trained_stage(run, run.config.schedule, stage))
    require_own(run)
    require_model(run, of.name)
    method = run.config.method_in(of).whole()
    sources = {slot: _adapter_source(run, of, slot) if adapters else _source(run, of, slot) for slot in sorted(method.spoken)}
    with _placed(out) as folder, writing(folder, KIND, {**run.made, "stage": of.name}) as partial:
        tokenizer = read_tokenizer(run.model(of.name))
        renderer = Renderer(tokenizer, method.tags)
        tokenizer.chat_template = renderer.portable_template
        tokenizer.save_pretrained(partial)
        voices = _name_bases(run, sources, partial) if adapters else _write_models(run.config, sources, partial, tokenizer, _address(out))
        _write_words(run, of, method, renderer, voices, partial)
    return out


def _source(run: Run, of: Stage, slot: Slot) -> Source:
    """As `stages.team.finished_team` has it."""
    if slot == FROZEN and of.kind == "rl" and of.merges:
        return _start(run, of)
    folder = run.model(of.name)
    place = folder / "slots" / slot
    if is_adapter(place):
        return Source(folder, place)
    return Source(place) if place.is_dir() else _with_its_own(folder)


def _adapter_source(run: Run, of: Stage, slot: Slot) -> Source:
    """The base that an adapter was trained over, and the adapter: also one that the stage has merged since."""
    merged = run.model(of.name) / MERGED / slot
    if is_adapter(merged) and slot in of.merges:
        return Source(_start(run, of).weights if run.config.model.dtype == "float32" else run.model(of.name), merged)
    found = _source(run, of, slot)
    if found.adapter is None and slot != FROZEN:
        raise InputError(f"stage {of.name} has no adapter for slot {slot}, whose weights are whole; leave out --adapters")
    return found


def _start(run: Run, of: Stage) -> Source:
    if not of.start:
        return Source(None)
    require_model(run, of.start)
    return _with_its_own(run.model(of.start))


def _with_its_own(folder: Path) -> Source:
    apart = folder / "slots" / BASE
    return Source(folder, apart if is_adapter(apart) else None)


def _write_models(
    config: RunConfig, sources: Mapping[Slot, Source], out: Path, tokenizer: PreTrainedTokenizerBase, address: str
) -> dict[Slot, Voice]:
    """One folder for each model that differs from the others: the first at the top, with which most roles of most teams speak."""
    places: dict[Path | None, str] = {}
    voices = {}
    for slot, source in sorted(sources.items(), key=lambda item: (item[0] == FROZEN, item[1].adapter is None, item[0])):
        if source.weights not in places:
            name = f"models/{slot}" if places else TOP
            _write_model(config, source.weights, out / name, tokenizer)
            same = next((other for other in places.values() if _same_files(out / other, out / name)), None)
            if same is not None:
                shutil.rmtree(out / name)
                with suppress(OSError):  # it holds others
                    (out / name).parent.rmdir()
            places[source.weights] = same or name
        model = places[source.weights]
        voices[slot] = _voice(slot, source, out, model, address if model == TOP else f"{address}/{model}")
    return voices


def _name_bases(run: Run, sources: Mapping[Slot, Source], out: Path) -> dict[Slot, Voice]:
    voices = {}
    for slot, source in sources.items():
        base = _base_name(run, source.weights)
        voices[slot] = _voice(slot, source, out, base, base)
    return voices


def _voice(slot: Slot, source: Source, out: Path, model: str, base: str) -> Voice:
    """Writes the slot's adapter, if it has one."""
    if source.adapter is None:
        return Voice(model)
    place = out / "adapters" / slot
    place.mkdir(parents=True)
    told = json.loads((source.adapter / CONFIG).read_text())
    (place / CONFIG).write_text(json.dumps({**told, "base_model_name_or_path": base, "inference_mode": True}, indent=2))
    shutil.copyfile(source.adapter / WEIGHTS, place / WEIGHTS)
    return Voice(model, f"adapters/{slot}", told["r"])


def _write_model(config: RunConfig, source: Path | None, out: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if source is None:
        first_model(config, CPU)[0].save_pretrained(out)
    else:
        for file in source.iterdir():
            if file.is_file() and file.name != MANIFEST:
                shutil.copyfile(file, out / file.name)
    tokenizer.save_pretrained(out)
    _generation(out, tokenizer).save_pretrained(out)


def _generation(folder: Path, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """What ends a turn for our engine ends one elsewhere, and nothing is sampled as the start model's makers liked it."""
    given = GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else GenerationConfig()
    listed = given.eos_token_id if isinstance(given.eos_token_id, list) else [given.eos_token_id]
    ends = list(dict.fromkeys(end for end in (tokenizer.eos_token_id, *listed) if end is not None))
    return GenerationConfig(
        do_sample=False, eos_token_id=ends, bos_token_id=given.bos_token_id,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else given.pad_token_id,
    )  # fmt: skip


def _same_files(one: Path, other: Path) -> bool:
    """Whether two models have the same weights, to the last bit."""
    names = [sorted(file.name for file in folder.glob("*.safetensors")) for folder in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])


def _base_name(run: Run, weights: Path | None) -> str:
    """What an adapter's config calls its base: the model that the run began with, if that is what it was trained over."""
    given = run.config.model.path
    if given is not None and (weights is None or _same_weights(weights, Path(given))):
        return str(Path(given).resolve())
    if weights is None:
        raise InputError("the base of these adapters was made from scratch and lies nowhere; leave out --adapters")
    return f"{run.location}/{run.key(weights)}" if run.location else str(weights.resolve())


def _same_weights(ours: Path, theirs: Path) -> bool:
    """Whether every weight of `ours` is theirs, rounded to our dtype. One tensor at a time is read."""
    own, other = _readers(ours), _readers(theirs)
    return own.keys() <= other.keys() and all(
        torch.equal(tensor := file.get_tensor(name), other[name].get_tensor(name).to(tensor.dtype)) for name, file in own.items()
    )


def _readers(folder: Path) -> dict[str, Any]:
    """The opened file of each weight of a model in safetensors."""
    files: list[Any] = [safe_open(file, "pt") for file in sorted(folder.glob("*.safetensors"))]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118  # a file is no mapping


def _write_words(run: Run, of: Stage, method: Method, renderer: Renderer, voices: Mapping[Slot, Voice], out: Path) -> None:
    told = about(run, of, method, voices)
    write_text(out / "rolecast.json", json.dumps(told, indent=1))
    write_text(out / "README.md", guide(told))
    (out / "prompts").mkdir()
    write_text(out / "prompts" / "README.md", prompts_guide(told))
    for name, text in prompt_files(run.config, of, method, renderer).items():
        write_text(out / "prompts" / name, text)


@contextmanager
def _placed(out: str) -> Iterator[Path]:
    """Where to write an export that is to lie at `out`."""
    if "://" in out:
        with making(out) as folder:
            yield folder
        return
    _require_ours(Path(out))
    yield Path(out)


def _address(out: str) -> str:
    return out.rstrip("/") if out.startswith(S3) else str(Path(out).resolve())


def _require_ours(out: Path) -> None:
    """Raises InputError unless nothing is at `out`, or an export as this package wrote it."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not committed(out) or parse_manifest((out / MANIFEST).read_bytes(), str(out))["kind"] != KIND:
        raise InputError(f"{out} exists and is no export; name another folder")
    try:
        known = {MANIFEST, *verify(out, KIND)["files"]}
    except ArtifactError as error:
        raise InputError(f"{out} is an export that was changed since ({error}); name another folder") from None
    if added := sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file() and str(file.relative_to(out)) not in known):
        raise InputError(f"{out} is an export to which {added[0]} was added; name another folder")
