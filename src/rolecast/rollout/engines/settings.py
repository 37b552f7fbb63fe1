"""What a config says of the engine. Apart from the engines, so that reading a config needs neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter, ValidationError, field_validator

from rolecast.errors import InputError
from rolecast.externals import plain_address
from rolecast.identity import HOW, SHAPE
from rolecast.reading import CLOSED, describe, read_mapping
from rolecast.types import Slot
from rolecast.weights.settings import LoraConfig

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM can make room for, and which all versions have


class _Engine(BaseModel):
    model_config = CLOSED


class TransformersConfig(_Engine):
    """Hugging Face models in this process."""

    name: Literal["transformers"] = "transformers"  # what samples
    max_batch: int = Field(128, ge=1, json_schema_extra=SHAPE)  # rows in flight
    in_flight: int = Field(256, ge=1, json_schema_extra=SHAPE)  # episodes in flight


class VllmConfig(_Engine):
    """vLLM, its engine core in a process of its own."""

    name: Literal["vllm"]  # what samples
    max_batch: int = Field(256, ge=1, json_schema_extra=SHAPE)  # requests in one step of vLLM
    in_flight: int = Field(512, ge=1, json_schema_extra=SHAPE)  # episodes in flight
    dtype: Literal["float32", "bfloat16"] | None = None  # of the sampler's weights; by default model.dtype
    seeds: bool = False  # each request draws from its own seed; slower
    memory: float = Field(0.85, gt=0, le=1, json_schema_extra=HOW)  # share of the GPU's memory that vLLM takes
    eager: bool = Field(False, json_schema_extra=HOW)  # neither compiles nor captures graphs: starts sooner, samples slower
    max_lora_rank: int | None = Field(
        None, ge=1, json_schema_extra=HOW
    )  # adapters of a higher rank are refused; by default the first ones'
    max_loras: int | None = Field(None, ge=1, json_schema_extra=HOW)  # slots with adapters at once; by default as many as there are
    staleness: int = Field(1, ge=0, json_schema_extra=HOW)  # versions before the newest whose adapters still answer


class VllmHttpConfig(_Engine):
    """A vLLM server, asked in token ids. It serves a trained team; nothing is trained on what it samples."""

    name: Literal["vllm_http"]  # what samples
    url: str = Field(json_schema_extra=HOW)  # the server's address, without /v1
    model: str = Field(min_length=1, json_schema_extra=HOW)  # the base's name there
    slots: dict[str, str] = Field({}, json_schema_extra=HOW)  # by slot, names of adapters that are served; others are loaded by their files
    dtype: Literal["float32", "bfloat16"] | None = Field(None, json_schema_extra=HOW)  # of the server's weights; by default model.dtype
    key_env: str | None = Field(None, min_length=1, json_schema_extra=HOW)  # the environment variable that holds its key
    in_flight: int = Field(256, ge=1, json_schema_extra=SHAPE)  # episodes in flight, and requests at once
    timeout: float = Field(120.0, gt=0, json_schema_extra=HOW)  # seconds of one try
    patience: float = Field(60.0, ge=0, json_schema_extra=HOW)  # seconds of trying before an episode is given up

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        return plain_address(url, "without /v1", "key_env").removesuffix("/v1")


def _name_of(given: Any) -> str:
    """The engine that is meant: configs from before there were several name none."""
    name = given.get("name", "transformers") if isinstance(given, dict) else getattr(given, "name", "transformers")
    return f"({name})"


ENDS = frozenset({"embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings", "output_layer"})  # as models name them


def check_lora(engine: VllmConfig, lora: LoraConfig, adapters: Collection[Slot]) -> None:
    """Raises `ValueError` for adapters that vLLM does not play, before they are trained."""
    if ends := sorted(ENDS & set(lora.targets if isinstance(lora.targets, list) else ())):
        raise ValueError(f"model.lora.targets names {ends[0]}, and vLLM adapts neither embeddings nor heads; leave it out")
    if engine.max_lora_rank is not None and lora.rank > engine.max_lora_rank:
        raise ValueError(f"model.lora.rank is {lora.rank}, and engine.max_lora_rank {engine.max_lora_rank}; raise that")
    if engine.max_loras is not None and len(adapters) > engine.max_loras:
        raise ValueError(
            f"{len(adapters)} slots have adapters ({', '.join(sorted(adapters))}), and engine.max_loras is {engine.max_loras}; raise that"
        )


EngineConfig = Annotated[
    Annotated[TransformersConfig, Tag("(transformers)")]
    | Annotated[VllmConfig, Tag("(vllm)")]
    | Annotated[VllmHttpConfig, Tag("(vllm_http)")],
    Discriminator(_name_of, custom_error_type="engine", custom_error_message="its name is transformers, vllm or vllm_http"),
]


def read_engine(file: str) -> EngineConfig | None:
    """The engine of a YAML file, as `engine` of a config has it; None without a file. `InputError` for what is no such file."""
    if not file:
        return None
    try:
        read: EngineConfig = TypeAdapter(EngineConfig).validate_python(read_mapping(Path(file), (), "file of an engine"))
    except ValidationError as error:
        raise InputError(f"{file}: {describe(error, 'engine')}") from None
    return read
