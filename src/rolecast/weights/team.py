"""A team: every weight that a stage speaks with or trains, found by its slot.

One base model; over it an adapter for each slot, or, without adapters, a whole model for each slot. A critic is an adapter or a whole
model with a head of its own. A slot that nothing was made for is the base as the stage found it: that is what a frozen role and the
reference of a KL term are, so adapters need no second model for them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rolecast.errors import ArtifactError, DivergedError
from rolecast.types import Slot
from rolecast.weights.adapters import activate, adapter_weights, add_adapter, is_adapter, load_adapter, of_adapter, save_adapter
from rolecast.weights.attention import Forest
from rolecast.weights.forward import head_logits, token_logits, trunk_states
from rolecast.weights.logprobs import PLAIN, Kernels, in_chunks, of_targets
from rolecast.weights.models import CPU, read_model
from rolecast.weights.settings import CHUNK, COMPILED_CHUNK, LoraConfig

Weights = dict[str, Tensor]  # by their names in the team
FROZEN: Slot = "frozen"  # the base as a stage finds it
BASE: Slot = "base"  # an adapter that belongs to the base, kept apart where merging would round it
MERGED = "merged"  # adapters that became part of a finished model, kept beside it
HEAD = "head.safetensors"
PROGRAMS = 64  # that may be compiled of one layer
Place = Literal["base", "adapter", "whole"]
Forward = Callable[..., Any]


class Rows(Protocol):
    """A micro-batch: `ids` (rows, width), padded on the right or, with a `forest`, packed.

    Asked for are the tokens `target` (asked,), each predicted from the one at `row`, `source`; what is trained (trained,) is the one with
    number `index[i]`, ascending, or without `index` one of its own.
    """

    @property
    def ids(self) -> Tensor: ...

    @property
    def forest(self) -> Forest | None: ...

    @property
    def row(self) -> Tensor: ...

    @property
    def source(self) -> Tensor: ...

    @property
    def index(self) -> Tensor | None: ...

    @property
    def target(self) -> Tensor: ...


class Team(nn.Module):
    """`place` says for each slot what its weights are; a slot that it does not know is `frozen`."""

    def __init__(self, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.base = base
        self.whole = nn.ModuleDict()
        self.heads = nn.ModuleDict()
        self.tokenizer = tokenizer
        self.place: dict[Slot, Place] = {FROZEN: "base"}
        self.chunk = CHUNK
        self._around: tuple[Callable[[Forward], Forward], ...] = ()  # what layers before a head run through, from inside out
        self._trunks: dict[int, Layers] = {}  # of models by id, as soon as one runs
        self._kernels = PLAIN
        self._compiled = False
        self._active: Slot | None = None
        self._built_in: Slot | None = None  # the adapter that makes the base what it is

    @property
    def device(self) -> torch.device:
        place: torch.device = next(self.base.parameters()).device
        return place

    def model(self, slot: Slot) -> PreTrainedModel:
        """The model that speaks for `slot` from now on, until another slot is asked for."""
        slot = slot if slot in self.place else FROZEN
        place = self.place[slot]
        if place == "whole":
            model: PreTrainedModel = self.whole[slot]
            return model
        wanted = slot if place == "adapter" else self._built_in
        if wanted != self._active:
            activate(self.base, wanted)
            self._active = wanted
        return self.base

    def speaker(self, slot: Slot) -> Callable[[], PreTrainedModel]:
        return lambda: self.model(slot)

    def chunks(self, rows: Rows) -> int:
        """In how many chunks the logits of a micro-batch are made: one where all are few."""
        logits = len(rows.source) * int(self.base.config.vocab_size)
        return max(1, -(-logits // self.chunk))

    def forward(self, slot: Slot, rows: Rows, temperature: float = 1.0, chunks: int | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Of each trained token, float32, (trained,): log-prob and entropy at the temperature that it was sampled with; for a critic
        the value of the state that it is drawn in. Entropy carries no gradient. `chunks`: of logits, in place of the team's own number."""
        model = self.model(slot)
        # Rows that are padded on the right need no mask: the causal one alone keeps padding out of sight.
        about = rows.forest.inputs(model.config, model.dtype) if rows.forest is not None else {}
        inputs = {"input_ids": rows.ids, "use_cache": False, **about}
        if slot in self.heads:
            hidden, _ = self._states(model, rows, inputs)
            values: Tensor = self.heads[slot](hidden).squeeze(-1).float()
            return values if rows.index is None else values[rows.index]
        cut = self.chunks(rows) if chunks is None else chunks
        if cut == 1 and not self._around:
            found = of_targets(token_logits(model, rows.row, rows.source, **inputs), rows.target, temperature)
        else:
            hidden, output = self._states(model, rows, inputs)
            # ZeRO-3, which says in how many chunks, fetches shards as a forward and a backward pass come to them, one after the other.
            trains = chunks is not None or _head_trains(model)
            found = in_chunks(lambda part: head_logits(model, part, output), hidden, rows.target, temperature, cut, self._kernels, trains)
        return found if rows.index is None else (found[0][rows.index], found[1][rows.index])

    def _states(self, model: PreTrainedModel, rows: Rows, inputs: Mapping[str, Any]) -> tuple[Tensor, type]:
        """Hidden states before the head. Compiled layers run as they do in an update also where none follows: a program that keeps nothing for
        a backward pass rounds elsewhere, and in bfloat16 ratios of whole units would leave a clip range of 3e-4 before anything moved."""
        asked = torch.is_grad_enabled()
        with torch.set_grad_enabled(asked or self._compiled):
            hidden, output = trunk_states(self._trunk(model), rows.row, rows.source, **inputs)
        return hidden if asked else hidden.detach(), output  # what the layers kept goes before there are logits

    def compile_layers(self, dynamic: bool = True) -> None:
        """From now on layers before a head, and what is read from its logits, run compiled, for any width, or, not `dynamic`, once for each.

        Heads, and engines that share a model, run as they are.
        """
        self._wrap(partial(torch.compile, dynamic=dynamic))
        self._compiled = True
        self._kernels, self.chunk = Kernels.compiled(), COMPILED_CHUNK // self.base.dtype.itemsize
        # A slot's adapter is a program of its own, and two where the first layer's input needs no gradient. Beyond torch's limit, 8, layers
        # would run as they are without a word.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, PROGRAMS)

    def recompute_layers(self) -> None:
        """From now on a layer keeps its input alone for the backward pass, and is computed again there. After `compile_layers`."""
        # ZeRO-3's weights have another shape between the passes, so shapes are not compared.
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
        self._wrap(lambda forward: partial(again, forward))

    def _wrap(self, around: Callable[[Forward], Forward]) -> None:
        self._around, self._trunks = (*self._around, around), {}

    def _trunk(self, model: PreTrainedModel) -> Forward:
        trunk = cast(nn.Module, model.base_model)
        if not self._around:
            return trunk
        if id(model) not in self._trunks:
            self._trunks[id(model)] = Layers(trunk, self._around)
        return self._trunks[id(model)]

    def trained(self, slot: Slot) -> list[tuple[str, nn.Parameter]]:
        """The slot's trained parameters by their names in the team."""
        return [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad and self._is_of(name, slot)]

    def _is_of(self, name: str, slot: Slot) -> bool:
        if name.startswith(f"heads.{slot}."):
            return True
        if self.place[slot] == "adapter" and not of_adapter(name, slot):
            return False
        return name.startswith(self._prefix(slot))

    def _prefix(self, slot: Slot) -> str:
        """What stands before the names that the slot's own model gives its weights."""
        return f"whole.{slot}." if self.place[slot] == "whole" else "base."

    def save(self, slots: Collection[Slot], folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Writes each slot to `folder/slots/SLOT`: a Hugging Face model, or an adapter in peft's form; a critic's head beside it.

        `weights`: what to write instead of the team's own, which may be shards. Raises `DivergedError` for what is not finite.
        """
        weights = self.state_dict() if weights is None else weights
        for slot in slots:
            place, prefix, ahead = folder / "slots" / slot, self._prefix(slot), f"heads.{slot}."
            own = {name: tensor for name, tensor in weights.items() if self._is_of(name, slot)}
            inner = {name.removeprefix(prefix): tensor for name, tensor in own.items() if name.startswith(prefix)}
            head = {name.removeprefix(ahead): tensor for name, tensor in own.items() if name.startswith(ahead)}
            require_finite({**inner, **head}, f"slot {slot}")
            if self.place[slot] == "adapter":
                save_adapter(self.base, inner, place, slot)
            else:
                self.model(slot).save_pretrained(place, state_dict=inner)
            if head:
                save_file({name: tensor.detach().cpu().contiguous() for name, tensor in head.items()}, place / HEAD)
        self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path, slots: Collection[Slot]) -> None:
        """Puts the weights of `folder/slots` in the place of the team's. Raises `ArtifactError` where one does not fit."""
        for slot in slots:
            if self.place[slot] == "adapter":
                load_adapter(self.base, folder / "slots" / slot, slot)
            else:
                self.model(slot).load_state_dict(read_model(folder / "slots" / slot, self.base.dtype, CPU).state_dict())

    def read(self, folder: Path, slots: Collection[Slot]) -> Weights:
        """The weights of `folder/slots` under their names in the team, which is left as it is."""
        found: Weights = {}
        for slot in slots:
            place = folder / "slots" / slot
            adapter = self.place[slot] == "adapter"
            inner = adapter_weights(place, slot) if adapter else read_model(place, self.base.dtype, CPU).state_dict()
            found |= {self._prefix(slot) + name: tensor for name, tensor in inner.items()}
            if slot in self.heads:
                found |= {f"heads.{slot}.{name}": tensor for name, tensor in load_file(place / HEAD).items()}
        return found


class Layers:
    """A trunk whose layers run through something else, and only when it is called through this.

    Layers one by one: they are alike, so that what is compiled for the first one serves all. Of a whole trunk at once the compiler makes as
    many copies as there are layers, which takes minutes.
    """

    def __init__(self, trunk: nn.Module, around: Sequence[Callable[[Forward], Forward]]) -> None:
        self._trunk = trunk
        self._layers: dict[nn.Module, Forward] = {}
        for layer in _layers_of(trunk):
            forward: Forward = layer.forward
            for wrap in around:
                forward = wrap(forward)
            self._layers[layer] = forward

    def __call__(self, **inputs: Any) -> Any:
        for layer, forward in self._layers.items():
            layer.forward = forward
        try:
            return self._trunk(**inputs)
        finally:
            for layer in self._layers:
                del layer.forward


def _head_trains(model: PreTrainedModel) -> bool:
    """Or anything else between the trunk and the logits. Not all weights are asked: every pass does."""
    behind = (module for module in model.children() if module is not model.base_model)
    return any(weight.requires_grad for module in behind for weight in module.parameters())


def _layers_of(trunk: nn.Module) -> list[nn.Module]:
    """Those of the list that holds most of the weights; the trunk itself where there is none."""
    lists = [module for module in trunk.modules() if isinstance(module, nn.ModuleList) and len(module)]
    return [*max(lists, key=_size_of)] if lists else [trunk]


def _size_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def require_finite(weights: Mapping[str, Tensor], what: str) -> None:
    """Nothing that is not finite is ever saved or published."""
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise DivergedError(
                f"{what}: weight {name} is not finite, so it is neither saved nor published; the last checkpoint is sound, lower the learning rate"
            )


@dataclass(frozen=True, slots=True)
class Casting:
    """What a stage needs of its team: the slots that roles speak with, those that are trained, critics, and whether the frozen base."""

    spoken: frozenset[Slot] = frozenset()
    trained: tuple[Slot, ...] = ()
    critics: tuple[Slot, ...] = ()
    frozen: bool = False  # a frozen role, or the reference of a KL term


def assemble(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, casting: Casting, *, start: Path | None = None, saved: Path | None = None,
    lora: LoraConfig | None = None, seed: int = 0,
) -> Team:  # fmt: skip
    """The one place where a team is put together, for training, publishing, workers, evaluation and serving.

    `base` was loaded from `start`, whose `slots` hold what is not part of it. `saved` holds slots that go before those: a checkpoint,
    or a published version.
    """
    team = Team(base.requires_grad_(False), tokenizer)
    if start is not None and (start / "slots" / BASE).is_dir():
        load_adapter(base, start / "slots" / BASE, BASE)
        team._built_in = BASE
    if lora is None and not _has_adapters(start, saved):
        _place_whole(team, casting, start, saved)
    else:
        _place_adapters(team, casting, start, saved, lora, seed)
    for parameter in team.parameters():
        parameter.requires_grad_(False)
    for slot in casting.critics:
        trunk = team.model(slot)
        head = nn.Linear(trunk.config.hidden_size, 1, dtype=trunk.dtype, device=trunk.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        if saved is not None:
            head.load_state_dict(load_file(saved / "slots" / slot / HEAD))
        team.heads[slot] = head
    for slot in (*casting.trained, *casting.critics):
        for name, parameter in team.named_parameters():
            if team._is_of(name, slot):
                parameter.requires_grad_(True)
    team._active = None
    if team._built_in is not None or "adapter" in team.place.values():
        activate(base, team._built_in)
        team._active = team._built_in
    return team


def _place_adapters(team: Team, casting: Casting, start: Path | None, saved: Path | None, lora: LoraConfig | None, seed: int) -> None:
    """A slot continues as it was saved, as the start has it, from the base's own adapter, or anew."""
    made = (*casting.trained, *casting.critics)
    for slot in sorted({*casting.spoken, *made} - {FROZEN}):
        found = next((place for root in (saved, start) if root is not None and is_adapter(place := root / "slots" / slot)), None)
        if found is not None:
            load_adapter(team.base, found, slot)
        elif slot not in made:
            continue  # the base itself
        elif team._built_in is not None:
            assert start is not None
            load_adapter(team.base, start / "slots" / BASE, slot)
        elif lora is None:
            raise ArtifactError(f"slot {slot} is trained over adapters, and model.lora is not set; set it as the run before had it")
        else:
            add_adapter(team.base, slot, lora, seed)
        team.place[slot] = "adapter"


def _place_whole(team: Team, casting: Casting, start: Path | None, saved: Path | None) -> None:
    """The first trained slot is the base itself; every other one, and the frozen base if it is needed, is a copy.

    A base that no slot of the stage trains plays every role that has no model of its own.
    """
    made = (*casting.trained, *casting.critics)
    own = [slot for slot in sorted(casting.spoken - {FROZEN, *made}) if start is not None and (start / "slots" / slot).is_dir()]
    needs_frozen = casting.frozen or FROZEN in casting.spoken or bool(casting.spoken - {*made, *own, FROZEN})
    for slot in (*casting.critics, *casting.trained[1:], *own):
        team.whole[slot] = copy.deepcopy(team.base)
        team.place[slot] = "whole"
    if casting.trained:
        team.place[casting.trained[0]] = "base"
        if needs_frozen:
            team.whole[FROZEN] = copy.deepcopy(team.base)
            team.place[FROZEN] = "whole"
    for slot in (*made, *own):
        found = next((place for root in (saved, start) if root is not None and (place := root / "slots" / slot).is_dir()), None)
        if found is not None:
            read = read_model(found, team.base.dtype, CPU)
            team.model(slot).load_state_dict(read.state_dict())


def _has_adapters(*folders: Path | None) -> bool:
    return any(is_adapter(place) for folder in folders if folder is not None for place in (folder / "slots").glob("*"))


def slots_in(folder: Path) -> Sequence[Slot]:
    """The slots that a folder holds beside its base."""
    return sorted(place.name for place in (folder / "slots").glob("*") if place.is_dir())
