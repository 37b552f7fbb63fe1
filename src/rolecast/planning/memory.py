"""What training and sampling keep in memory, part by part. Every formula stands in docs/planning.md with its source.

Bytes are of one rank: a GPU, or the process where there is none. Figures are of what is allocated, not of an allocator's waste.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rolecast.config import RunConfig
from rolecast.learner.settings import OptimizerConfig
from rolecast.planning.shape import Shape
from rolecast.stage_settings import TrainedConfig
from rolecast.types import Slot, Stage
from rolecast.weights.settings import CHUNK, COMPILED_CHUNK, LoraConfig

Where = Literal["device", "host"]
BYTES = {"float32": 4, "bfloat16": 2}
BUCKET = 5 * 10**8  # elements whose gradients DeepSpeed reduces at once
PER_LOGIT = 12  # bytes: three float32 tensors are there at once, logits and what their entropy, or their gradient, takes


@dataclass(frozen=True, slots=True)
class Part:
    """`what`: how the number comes about. `change`: what makes it smaller; `now`: where that is a number of the config that it grows with,
    its value. `unbound`: bytes that it would have at that number, if it did not stop growing at `bytes`."""

    name: str
    bytes: int
    what: str
    change: str = ""
    where: Where = "device"
    now: int = 0
    unbound: int = 0

    def at(self, number: int) -> float:
        """Bytes, were the number of the config this one instead of `now`, which is larger."""
        return min(self.bytes, number * (self.unbound or self.bytes) / self.now)


@dataclass(frozen=True, slots=True)
class Weights:
    """A stage's weights. `base`: parameters of whole models that are only read; `trained`: of each slot that is trained, critics too."""

    base: int
    trained: dict[Slot, int]
    matrices: dict[Slot, int]  # of `trained`, what Muon has
    lora: bool

    @property
    def all(self) -> int:
        return self.base + sum(self.trained.values())


def weights_of(config: RunConfig, stage: Stage, shape: Shape) -> Weights:
    """As `weights.team.assemble` puts a team together."""
    settings = config.stages[stage.name]
    lora: LoraConfig | None = config.model.lora if not isinstance(settings, TrainedConfig) or settings.adapters else None
    method = config.method_in(stage)
    anchored = any(o.kl is not None for o in stage.objectives) or "frozen" in method.spoken
    made = (*stage.trained, *stage.critics)
    heads = dict.fromkeys(stage.critics, shape.hidden + 1)
    if lora is not None:
        each = shape.adapter(lora)
        others = len(method.spoken - {*made, "frozen"}) * each if stage.start else 0  # at most: slots of earlier stages
        return Weights(shape.parameters + others, {slot: each + heads.get(slot, 0) for slot in made}, dict.fromkeys(made, 0), True)
    copies = len(method.spoken - {*made, "frozen"}) if stage.start else 0  # at most
    base = shape.parameters * (copies + (1 if anchored or (not stage.start and method.spoken - {*made, "frozen"}) else 0))
    return Weights(
        base, {slot: shape.parameters + heads.get(slot, 0) for slot in made}, dict.fromkeys(made, shape.matrices), False
    )  # fmt: skip


def optimizer_bytes(config: OptimizerConfig, parameters: int, matrices: int) -> int:
    """Moments in float32: two of AdamW, one of Muon's matrices, one of SGD with momentum."""
    if config.name == "muon":
        return 8 * (parameters - matrices) + 4 * matrices
    if config.name == "sgd":
        return 4 * parameters if config.momentum else 0
    return 8 * parameters


def learner_parts(config: RunConfig, stage: Stage, shape: Shape, ranks: int) -> list[Part]:
    """Of one stage of training."""
    settings = config.stages[stage.name]
    assert isinstance(settings, TrainedConfig)
    w, b = weights_of(config, stage, shape), BYTES[config.model.dtype]
    total = sum(w.trained.values())
    moments = sum(optimizer_bytes(settings.optimizers.get(slot, settings.optimizer), n, w.matrices[slot]) for slot, n in w.trained.items())
    sharded = config.learner.name == "deepspeed"
    zero = config.learner.zero if sharded else 0
    masters = 4 * total if b == 2 or zero > 0 else 0  # ZeRO keeps a float32 copy of its shard in every dtype
    # Plain torch adds gradients up in float32; ZeRO keeps them in the weights' dtype, ZeRO-0 in bfloat16 in float32 too.
    gradients = (b if zero > 0 else 4) * total
    own = {1: ranks, 2: ranks, 3: ranks}.get(zero, 1)
    shard = {"weights": ranks if zero == 3 else 1, "gradients": ranks if zero >= 2 else 1, "optimizer": own}
    away: Where = "host" if sharded and config.learner.offload else "device"
    less = "train adapters (model.lora), or shard over more ranks (learner: {name: deepspeed, zero: 3, offload: true})"
    narrow = "a smaller model" if b == 2 else "model.dtype bfloat16, or a smaller model"
    kind = "adapters" if w.lora else "weights"
    parts = [
        Part("weights, read", w.base * b // shard["weights"], f"{w.base:,} × {b} B" + _over(shard["weights"]), narrow),
        *(
            Part(f"weights, {slot}", n * b // shard["weights"], f"{n:,} {kind} × {b} B" + _over(shard["weights"]), less)
            for slot, n in w.trained.items()
        ),
        Part("gradients", gradients // shard["gradients"], f"{total:,} × {gradients // total} B" + _over(shard["gradients"]), less, away),
        Part("optimizer", (moments + masters) // own, f"moments {moments:,} B, masters {masters:,} B" + _over(own), less, away),
    ]
    if zero > 0:
        bucket = min(BUCKET, total)
        parts.append(Part("reduce bucket", bucket * b, f"{bucket:,} gradients × {b} B", less))
    return [*parts, *batch_parts(config, stage, shape)]


def _over(ranks: int) -> str:
    return f" over {ranks} ranks" if ranks > 1 else ""


def batch_parts(config: RunConfig, stage: Stage, shape: Shape) -> list[Part]:
    """Of a micro-batch of `max_tokens` tokens, all of which count as trained."""
    settings = config.stages[stage.name]
    assert isinstance(settings, TrainedConfig)
    tokens = max(settings.max_tokens, config.model.max_context)  # a row that is longer is a micro-batch of its own
    b = BYTES[config.model.dtype]
    change = f"stages.{stage.name}.max_tokens" if tokens > config.model.max_context else "model.max_context"
    layer = layer_bytes(shape, b)
    kept, again = tokens * layer * shape.layers, tokens * (shape.hidden * b * shape.layers + layer)  # every layer's input, and one layer
    told = f"{tokens:,} tokens × {shape.layers} layers × {layer:,} B ({again / 2**30:.2f} GiB with learner.recompute)"
    if config.learner.recompute:
        told = f"{tokens:,} tokens × {shape.layers} layers × {shape.hidden * b:,} B, and {layer:,} B of one layer"
    wanted = tokens * shape.vocabulary
    # compiled, logits and their gradient, and what is put together of them
    chunk, per = (COMPILED_CHUNK // b, 2 * b + 1) if config.learner.compile else (CHUNK, PER_LOGIT)
    at_once = min(wanted, chunk)  # more is computed in chunks
    return [
        Part("activations", again if config.learner.recompute else kept, told, change, now=tokens),
        Part("logits", at_once * per, f"{at_once:,} numbers × {per} B", change, now=tokens, unbound=wanted * per),
    ]  # fmt: skip


def layer_bytes(shape: Shape, b: int) -> int:
    """What one decoder layer keeps of one token for the backward pass, without attention's probabilities, which no kernel of ours keeps.

    Two norms in float32 (what they read, what they give, and a scale) with their results; queries, keys and values as attention takes
    them, its result, and a float32 sum for each head; gate, its activation, the other half, and their product.
    """
    h = shape.hidden
    norms = 2 * (8 * h + 4 + (2 * h if b == 2 else 0)) + 2 * h * b
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim * b + 4 * shape.heads
    return norms + attention + 4 * shape.feed_forward * b


def engine_parts(config: RunConfig, stage: Stage, shape: Shape, shared: bool) -> list[Part]:
    """Of the engine that samples in this stage. `shared`: with the learner's own weights."""
    w, b = weights_of(config, stage, shape), BYTES[config.model.dtype]
    spoken = sorted(config.method_in(stage).spoken)
    rows = getattr(config.engine, "max_batch", None)
    if rows is None:  # a server's memory is its own
        return []
    token = kv_bytes(shape, b)
    caches = len(spoken) if config.engine.name == "transformers" else 1  # each slot's decoder has a cache of its own
    change = "engine.max_batch"
    copied = w.base + (0 if w.lora else sum(n for slot, n in w.trained.items() if slot in spoken))
    parts = [] if shared else [Part("engine: weights", copied * b, f"{copied:,} × {b} B", "a smaller model")]
    if w.lora and not shared:
        adapters = {slot: n for slot, n in w.trained.items() if slot in spoken}
        parts.append(Part("engine: adapters", sum(adapters.values()) * b, f"{len(adapters)} slots", "model.lora.rank"))
    cached = rows * config.model.max_context
    return [
        *parts,
        Part("engine: KV cache", caches * cached * token,
             f"{token:,} B a token × {rows} rows × {config.model.max_context} tokens" + (f" × {caches} slots" if caches > 1 else ""), change,
             now=rows),
    ]  # fmt: skip


def kv_bytes(shape: Shape, b: int) -> int:
    """Keys and values of one token in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * b


def total(parts: Sequence[Part], where: Where = "device") -> int:
    return sum(part.bytes for part in parts if part.where == where)


def on_host(parts: Sequence[Part]) -> list[Part]:
    """The same parts where there is no GPU: all of them are the host's."""
    return [replace(part, where="host") for part in parts]
