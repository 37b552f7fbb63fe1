"""One closed configuration for a run. Every key has a type and a default; an unknown key is an error.

Each part is defined beside what it configures where that part has a module of its own (stages, methods, models, optimizer, teachers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from rolecast import identity, ports
from rolecast.errors import InputError
from rolecast.externals import EndpointName, ExternalConfig
from rolecast.formats import KEY, RUN, SINCE
from rolecast.identity import ADDED, HOW, SHAPE
from rolecast.learner.settings import BackendConfig
from rolecast.methods import registry
from rolecast.methods.base import Method, MethodConfig
from rolecast.methods.registry import make_method
from rolecast.reading import CLOSED, describe, override, read_json, read_mapping
from rolecast.retriever.analysis import Analysis
from rolecast.retriever.encoder import Prefixes
from rolecast.retriever.live.settings import LIVE, LiveConfig
from rolecast.rollout.engines.settings import EngineConfig, TransformersConfig, VllmHttpConfig, check_lora
from rolecast.schedule import Schedule, find
from rolecast.stage_settings import STAGE_KINDS, PlayedConfig, RlConfig, RolloutConfig, SftConfig, StageConfig, TrainedConfig
from rolecast.types import EXTERNAL, Slot, Stage, external
from rolecast.weights.settings import ModelConfig

Count = Annotated[int, Field(ge=0)]
Cast = Annotated[Slot, Field(pattern=f"^(frozen|{EXTERNAL}.+)$")]

MOST = 10**12  # of any number but the seed: above it counters and tensors no longer hold it


class Closed(BaseModel):
    model_config = CLOSED


class WorldConfig(Closed):
    # invented facts; invented facts among others that look like them, on which roles matter; invented facts with questions that a report
    # answers; or real geography
    kind: Literal["counterfactual", "crowded", "reports", "facts"] = "counterfactual"
    entities: dict[str, Count] = {"train": 5600, "dev": 300, "test": 900}  # names of each split; of invented worlds only
    questions: dict[str, Count] = {"train": 9000, "dev": 240, "test": 1200}  # questions of each split


class DataConfig(Closed):
    """The run's own world, or files: a corpus and questions of each split."""

    world: WorldConfig | None = WorldConfig()  # a world that the run draws for itself; null where files are given
    corpus: str | None = None  # JSON lines of passages; see docs/data.md
    train: str | None = None  # JSON lines of questions to train on
    dev: str | None = None  # JSON lines of questions that checkpoints are chosen on
    test: str | None = None  # JSON lines of questions that only evaluations see

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        files = (self.corpus, self.train, self.dev, self.test)
        if self.world is None and not all(files):
            raise ValueError("set data.world, or all of data.corpus, data.train, data.dev and data.test")
        if self.world is not None and any(files):
            raise ValueError("data.world and data files exclude each other; set data.world to null to use files")
        if away := [file for file in files if file and "://" in file]:
            raise ValueError(f"{away[0]} is an address, and data is read from files; copy it here, or where every job sees it")
        return self

    @property
    def thrown_away(self) -> str:
        """The kind of the worlds that teachers play on: like the run's own."""
        return self.world.kind if self.world else WorldConfig().kind


class RetrieverConfig(Closed):
    """What a run searches: an index over its own corpus, unless `index` names another."""

    # the ranker: words, meaning, or both; external: a service that cannot say what it serves; live: a search engine. Neither has an index
    kind: Literal["bm25", "dense", "hybrid", "external", "live"] = "bm25"
    encoder: str = "minilm"  # minilm: the packaged all-MiniLM-L6-v2; else a sentence-transformers directory
    # what stands before a text that is encoded, {query: "query: ", passage: "passage: "}; null: what the encoder's own configuration names
    prefixes: Prefixes | None = Field(None, json_schema_extra=ADDED)
    long: Literal["cut", "split"] = Field("cut", json_schema_extra=ADDED)  # a passage that outgrows the encoder's window: cut, or in pieces
    # how words are read and weighed, written into the index; null: plain words over worlds that the run draws, unicode over a corpus of files
    analysis: Analysis | None = Field(None, json_schema_extra=ADDED)
    # the address of an index that was built before, a folder or s3://bucket/prefix/key; what lies there is held to its digest
    index: str | None = Field(None, min_length=1, json_schema_extra=HOW)
    # the search engine of kind live: other results another day, so never in lockstep
    live: LiveConfig | None = Field(None, json_schema_extra=ADDED)
    url: str | None = Field(None, min_length=1, json_schema_extra=HOW)  # a service that serves the index, instead of opening it here
    patience: float = Field(120.0, ge=0, json_schema_extra=HOW)  # seconds that a search waits for a service that is away
    limit: float | None = Field(900.0, gt=0, json_schema_extra=HOW)  # seconds that a call may take in all; then its episode has failed

    @model_validator(mode="after")
    def _live_or_index(self) -> RetrieverConfig:
        if (self.kind == LIVE) != (self.live is not None):
            raise ValueError(
                f"kind {self.kind} {'needs a section live: which engine is asked' if self.kind == LIVE else 'asks no engine: leave live out'}"
            )
        if self.live is not None and self.index:
            raise ValueError("a search engine is asked instead of an index: leave index out")
        return self

    @property
    def indexed(self) -> bool:
        """Whether there is an index, of the run's own or another one."""
        return self.kind not in (ports.EXTERNAL, LIVE)


class JudgeConfig(Closed):
    """Who scores."""

    model: str = Field("lexical", min_length=1)  # lexical, the rules of this package, or the name of the model that the judge service asks
    url: str | None = Field(None, min_length=1, json_schema_extra=HOW)  # the judge service; the lexical judge needs none
    patience: float = Field(240.0, ge=0, json_schema_extra=HOW)  # seconds before an action stays unscored
    limit: float | None = Field(900.0, gt=0, json_schema_extra=HOW)  # seconds that a call may take in all; then its episode has failed
    # tokens that it may read and say: in RL, dev included, and in the run's evaluations; of `eval --model` and `data demonstrate` in all that is
    # kept in their folder. What passes it stops, saved, and goes on once this is raised
    budget: int | None = Field(None, ge=1, json_schema_extra=HOW)


class EvalConfig(Closed):
    n: int = Field(1000, ge=1)  # test questions
    bootstrap: int = Field(2000, ge=100)  # resamples behind a confidence interval
    traces: int = Field(60, ge=0)  # episodes kept for the report


class RunConfig(Closed):
    name: str = "run"  # of the run; a new one makes another run
    seed: int = Field(0, ge=0, lt=2**63)  # draws the world, the model and the samples
    # tokens that trained roles may sample in all RL stages and in the rollout stages before them; RL ends at the step that passes it
    budget: int | None = Field(None, ge=1)
    lockstep: bool = False  # two runs are bitwise equal, on one machine's CPUs; slower
    threads: int | None = Field(None, ge=1, le=4096, json_schema_extra=SHAPE)  # torch threads; by default as many as there are cores
    method: SerializeAsAny[MethodConfig] = Field(default_factory=registry.default_config)
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    judge: JudgeConfig = JudgeConfig()
    # who speaks for a role in every stage, instead of the slot that the method gives it: frozen, or external:NAME
    cast: dict[str, Cast] = {}
    externals: dict[EndpointName, ExternalConfig] = {}  # OpenAI-compatible endpoints by name, for roles whose slot is external:NAME
    engine: EngineConfig = TransformersConfig()
    learner: BackendConfig = Field(BackendConfig(), json_schema_extra=SHAPE)
    # who plays: the learner's own process, or rollout services
    rollouts: Literal["local", "workers"] = Field("local", json_schema_extra=SHAPE)
    stages: dict[str, SerializeAsAny[StageConfig]] = Field({}, validate_default=True)  # by their names in the method's schedule
    eval: EvalConfig = EvalConfig()

    @field_validator("method", mode="before")
    @classmethod
    def _read_by_its_own_type(cls, value: object) -> MethodConfig:
        return registry.read_config(value)

    @model_validator(mode="before")
    @classmethod
    def _stages_have_names(cls, data: Any) -> Any:
        if isinstance(data, dict) and (old := sorted({"sft", "rl"} & set(data))):
            raise ValueError(f"{old[0]!r} is no key of a config: a stage's settings stand under stages.{old[0]}")
        return data

    @field_validator("stages", mode="before")
    @classmethod
    def _stages_of_the_schedule(cls, given: Any, info: ValidationInfo) -> Any:
        """Every stage of the method's schedule, with the settings of its kind. One of SFT that is null has no steps: its model is what it starts
        from. Another one that is null is as if it were not given: so an override takes back what a file says of a stage that another
        schedule has not."""
        if "method" not in info.data:
            return {}  # nothing is known of them, and what is wrong with the method is what there is to say
        if not isinstance(given, dict):
            return given
        method = make_method(info.data["method"])
        left_out = {stage.name for stage in method.schedule() if stage.kind == "sft" and given.get(stage.name, 0) is None}
        given = {name: settings for name, settings in given.items() if settings is not None} | {name: {"steps": 0} for name in left_out}
        if untrained := [stage for stage in method.schedule() if stage.kind not in STAGE_KINDS]:
            raise ValueError(f"{method.name}: stage {untrained[0].name!r} is of kind {untrained[0].kind!r}, which no stage can be")
        kinds = {stage.name: STAGE_KINDS[stage.kind] for stage in method.schedule()}
        if unknown := sorted(set(given) - set(kinds)):
            has = ", ".join(kinds) or "none"
            raise ValueError(
                f"{method.name} has no stage {unknown[0]!r}; it has {has}. Take back what a file says of it by stages.{unknown[0]}=null"
            )
        stages = create_model("stages", __base__=Closed, **{name: (kind, kind()) for name, kind in kinds.items()})  # type: ignore[call-overload]
        read = stages.model_validate({name: _plain(settings) for name, settings in given.items()})
        return {name: getattr(read, name) for name in kinds}

    @model_validator(mode="after")
    def _roles_are_the_methods(self) -> RunConfig:
        roles = make_method(self.method).roles
        for name, stage in self.stages.items():
            if stray := sorted(set(stage.lengths) - set(roles)):
                raise ValueError(f"stages.{name}.lengths: {self.method.name} has no role {stray[0]!r}; it has {', '.join(roles)}")
            if not isinstance(stage, SftConfig) or not stage.mix:
                continue
            if unknown := sorted({role for role, share in stage.mix.items() if share} - set(roles)):
                raise ValueError(f"stages.{name}.mix: {self.method.name} has no role {unknown[0]!r}; it has {', '.join(roles)}")
            of = find(self.schedule, name)
            if mute := [role for role in self.method_in(of).roles.values() if role.name in stage.mix and role.slot not in of.trained]:
                raise ValueError(f"stages.{name}.mix: {mute[0].name} speaks with {mute[0].slot}, which is not trained there; leave it out")
            if abs(sum(stage.mix.values()) - 1) > 0.01:
                raise ValueError(f"stages.{name}.mix: shares add up to {sum(stage.mix.values()):g}; make it 1")
        return self

    @model_validator(mode="after")
    def _somebody_speaks(self) -> RunConfig:
        """Every role through an endpoint that there is, and every slot that a stage trains by a role."""
        method = make_method(self.method)
        if self.lockstep and self.retriever.live is not None:
            raise ValueError(
                f"lockstep: a run repeats to the last bit, and {self.retriever.live.engine} finds something else tomorrow; set lockstep to false"
            )
        if stray := sorted(set(self.cast) - set(method.roles)):
            raise ValueError(f"cast: {method.name} has no role {stray[0]!r}; it has {', '.join(method.roles)}")
        for stage in method.schedule():
            staged = self.method_in(stage)
            if missing := sorted(staged.endpoints - set(self.externals)):
                role = next(role.name for role in staged.roles.values() if role.slot == external(missing[0]))
                raise ValueError(
                    f"role {role} of {method.name} speaks through {external(missing[0])}, and externals has no {missing[0]!r}; say where it is"
                )
            settings = self.stages[stage.name]
            if self.lockstep and isinstance(settings, RlConfig) and settings.staleness:
                raise ValueError(
                    f"lockstep: a run that goes on repeats to the last bit, and what was sampled ahead is lost then; set stages.{stage.name}.staleness "
                    "to 0, or lockstep to false"
                )
            if self.lockstep and isinstance(settings, RlConfig) and settings.oversample:
                raise ValueError(
                    f"lockstep: a run repeats to the last bit, and who is cancelled depends on who is faster; set stages.{stage.name}.oversample to 0, "
                    "or lockstep to false"
                )
            if staged.dynamic_sampling == "off" and isinstance(settings, RlConfig) and settings.oversample:
                raise ValueError(
                    f"stages.{stage.name}.oversample: {method.name} drops no groups (its dynamic_sampling is off), so a step needs all that it draws; "
                    "set it to 0"
                )
            if self.lockstep and staged.endpoints:
                raise ValueError(
                    f"lockstep: a run repeats to the last bit, and {external(min(staged.endpoints))} promises no such thing; set lockstep to false"
                )
            idle = sorted(set(stage.trained) - staged.spoken)
            if idle and isinstance(settings, TrainedConfig) and settings.steps and not settings.model:
                raise ValueError(
                    f"cast leaves nobody who speaks with {idle[0]!r}, which stage {stage.name} trains; set stages.{stage.name}.steps to 0, or leave "
                    "a role to it"
                )
        return self

    @model_validator(mode="after")
    def _whole_weights_are_merged(self) -> RunConfig:
        """Later stages train adapters over one base: what a stage trained whole must be that base."""
        for stage in self.schedule:
            settings = self.stages.get(stage.name)
            if isinstance(settings, TrainedConfig) and not settings.adapters and (left := sorted(set(stage.trained) - set(stage.merges))):
                raise ValueError(f"stages.{stage.name}.adapters: its slot {left[0]!r} is not merged when it ends; leave adapters at true")
        return self

    @model_validator(mode="after")
    def _the_engine_can_play(self) -> RunConfig:
        """What an engine that reads its weights itself can play of every stage, before anything is trained."""
        if isinstance(self.engine, TransformersConfig):
            return self
        name = self.engine.name
        if self.lockstep:
            raise ValueError(
                f"lockstep: a run repeats to the last bit, and {name} puts into one batch what arrives together; set lockstep to false, or "
                "engine.name to transformers"
            )
        for stage in self.schedule:
            settings = self.stages[stage.name]
            if not isinstance(settings, PlayedConfig):
                continue
            if isinstance(self.engine, VllmHttpConfig):
                raise ValueError(
                    f"engine {name} serves what is trained, and stage {stage.name} wants its weights swapped; set engine.name to vllm"
                )
            spoken = self.method_in(stage).spoken
            if self.model.lora is not None and (not isinstance(settings, TrainedConfig) or settings.adapters):
                check_lora(self.engine, self.model.lora, spoken & set(stage.trained))
            elif len(spoken) > 1 and set(stage.trained) & spoken:
                raise ValueError(
                    f"stage {stage.name} trains whole models, and {', '.join(sorted(spoken))} speak in it; vllm plays one model with adapters over "
                    "it: set model.lora, or engine.name to transformers"
                )
        return self

    @property
    def sampled_in(self) -> str:
        """The narrowest dtype between a token's log-prob and the trainer's."""
        own = None if isinstance(self.engine, TransformersConfig) else self.engine.dtype
        return "bfloat16" if "bfloat16" in (own, self.model.dtype) else "float32"

    @property
    def schedule(self) -> Schedule:
        return make_method(self.method).schedule()

    def method_in(self, stage: Stage) -> Method:
        """The method as it is played in this stage, and with its model."""
        return make_method(self.method).in_stage(stage, self.stages[stage.name].lengths, self.cast)

    def externals_of(self, method: Method) -> dict[str, ExternalConfig]:
        """The endpoints that the method's roles speak through."""
        return {name: self.externals[name] for name in sorted(method.endpoints)}

    def sft(self, stage: str) -> SftConfig:
        settings = self.stages[stage]
        assert isinstance(settings, SftConfig), f"stage {stage} is no SFT"
        return settings

    def rl(self, stage: str) -> RlConfig:
        settings = self.stages[stage]
        assert isinstance(settings, RlConfig), f"stage {stage} is no RL"
        return settings

    def rollout(self, stage: str) -> RolloutConfig:
        settings = self.stages[stage]
        assert isinstance(settings, RolloutConfig), f"stage {stage} is no rollout"
        return settings

    def steps_before(self, stage: Stage, block: int = 1) -> int:
        """Steps of the stages of its kind that come before it, each rounded up to whole blocks: there its random streams go on."""
        before = [self.stages[other.name] for other in takewhile(lambda other: other.name != stage.name, self.schedule)]
        own = STAGE_KINDS[stage.kind]
        return sum(-(-c.steps // block) * block for c in before if isinstance(c, own) and isinstance(c, TrainedConfig))

    @property
    def fingerprint(self) -> str:
        """Of what is computed: addresses, patience, workers and devices do not count."""
        return identity.digest(self)


def _plain(settings: Any) -> Any:
    return settings.model_dump() if isinstance(settings, BaseModel) else settings


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """A YAML file with `key.sub=value` overrides, values in YAML."""
    return make_config(read_mapping(path, overrides, "config"), f"{path} with --set" if overrides else str(path))


def changed_config(config: RunConfig, overrides: Sequence[str], origin: str) -> RunConfig:
    """The config with other settings, as `load_config` takes them."""
    data = config.model_dump(mode="json")
    for text in overrides:
        override(data, text)
    return make_config(data, origin)


def make_config(data: dict[str, Any], origin: str) -> RunConfig:
    """`data` may say its `format`; what does not is of this release's."""
    try:
        if isinstance(data, dict) and KEY in data:
            RUN.check(data, origin)
            data = {key: value for key, value in data.items() if key not in (KEY, SINCE)}
        read = RunConfig.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{origin}: {describe(error)}") from None
    if beyond := next((key for key, value in _numbers(read.model_dump(mode="json")) if key != "seed" and abs(value) > MOST), None):
        raise InputError(f"{origin}: {beyond}: is larger than any number that counts something here can be (10^12)")
    return read


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a config, by their keys."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in items:
        yield from _numbers(below, f"{key}.{name}" if key else str(name))


def read_json_config(text: str, origin: str = "config") -> RunConfig:
    return make_config(read_json(text, origin), origin)
