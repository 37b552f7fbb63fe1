"""The run's configuration: closed, typed, and every fault one line that names the key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import as_file
from pathlib import Path

import pytest

from rolecast.config import RunConfig, load_config, make_config, read_json_config
from rolecast.errors import InputError
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.registry import find, known
from rolecast.methods.search_r1 import SearchR1Config
from rolecast.stage_settings import RlConfig, SftConfig
from rolecast.types import Stage

PRESETS = [Path(str(find(name).preset(preset))) for name in known() for preset in find(name).presets]
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def text(content: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(content)
        return path

    return text


def message(path: Path, overrides: Sequence[str] = ()) -> str:
    with pytest.raises(InputError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_load(path: Path) -> None:
    config = load_config(path)
    assert read_json_config(config.model_dump_json()) == config


def test_an_empty_mapping_is_the_default_and_an_empty_file_is_none(write: Write) -> None:
    assert load_config(write("{}")) == RunConfig()
    assert "holds nothing; write the keys of the config into it" in message(write("# name: forgotten\n"))


@pytest.mark.parametrize("method", ["{name: decor, prompts: compact, kk: 5}", "{name: decr}", "{name: decor, k: many}"])
def test_what_is_wrong_with_a_method_is_all_that_is_said(write: Write, method: str) -> None:
    """Without it nothing is known of the stages."""
    said = message(write(f"method: {method}\nstages: {{sft: {{steps: 5, batch: 2, lr: 1e-3}}, rl: {{steps: 5, group: 2}}}}"))
    assert "method" in said
    assert "more" not in said


def test_values_and_overrides(write: Write) -> None:
    path = write("seed: 3\nmethod: {name: decor, alpha: 0.3}\nstages: {rl: {steps: 5}}\n")
    config = load_config(
        path, ["seed=4", "stages.rl.group=2", "method.prompts=compact", "stages.sft.mix={planner: 0.5, filter: 0.5}", "model.path=null"]
    )
    assert (config.seed, config.rl("rl").steps, config.rl("rl").group) == (4, 5, 2)
    assert isinstance(config.method, DecorConfig)
    assert (config.method.alpha, config.method.prompts) == (0.3, "compact")
    assert config.sft("sft").mix == {"planner": 0.5, "filter": 0.5}


def test_an_override_makes_sections_that_the_file_lacks_or_leaves_empty(write: Write) -> None:
    config = load_config(write("stages:\n"), ["stages.rl.optimizer.schedule=cosine", "data.world.kind=facts"])
    assert config.rl("rl").optimizer.schedule == "cosine"
    assert config.data.world is not None
    assert config.data.world.kind == "facts"


@pytest.mark.parametrize("key", ["sft", "rl"])
def test_a_stage_outside_of_the_stages_is_told_where_it_belongs(write: Write, key: str) -> None:
    said = f"{key!r} is no key of a config: a stage's settings stand under stages.{key}"
    assert said in message(write(f"{key}: {{steps: 5}}"))
    assert said in message(write("{}"), [f"{key}.steps=5"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("stages: {rll: {steps: 5}}", "stages: decor has no stage 'rll'; it has sft, rl"),
        ("method: {name: direct}\nstages: {rl: {steps: 5}}", "stages: direct has no stage 'rl'; it has sft"),
        ("stages: {sft: {group: 5}}", "stages.sft.group: unknown key"),  # a key of another kind of stage
    ],
)
def test_stages_are_those_of_the_methods_schedule(write: Write, content: str, reason: str) -> None:
    assert f"run.yaml: {reason}" in message(write(content))


def test_every_stage_of_the_schedule_has_settings_in_its_order(write: Write) -> None:
    config = load_config(write("stages: {rl: {steps: 5}}"))
    assert list(config.stages) == [stage.name for stage in config.schedule] == ["sft", "rl"]
    assert (config.sft("sft"), config.rl("rl").steps) == (SftConfig(), 5)
    assert list(load_config(write("method: {name: naive_rag}")).stages) == ["sft"]


def test_the_last_override_counts(write: Write) -> None:
    assert load_config(write("{}"), ["seed=1", "seed=2"]).seed == 2


def test_a_method_is_chosen_by_its_name(write: Write) -> None:
    assert isinstance(load_config(write("method: {name: search_r1, algorithm: ppo}")).method, SearchR1Config)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("sed: 3", "sed"),
        ("stages: {rl: {stepz: 5}}", "stages.rl.stepz"),
        ("stages: {rl: {guard: {patiens: 5}}}", "stages.rl.guard.patiens"),
        ("stages: {sft: {errors: {stop_late: 0.5}}}", "stages.sft.errors.stop_late"),
        ("data: {world: {size: 3}}", "data.world.size"),
        ("stages: {rl: {optimizer: {lr: 3}}}", "stages.rl.optimizer.lr"),
    ],
)
def test_an_unknown_key_is_named_in_full(write: Write, content: str, key: str) -> None:
    assert f"run.yaml: {key}: unknown key" in message(write(content))


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("seed: many", "seed"),
        ("seed: 1.5", "seed"),
        ("seed: null", "seed"),
        ("stages: {rl: {steps: -1}}", "stages.rl.steps"),
        ("stages: {rl: {steps: [1]}}", "stages.rl.steps"),
        ("stages: {rl: 5}", "stages.rl"),
        ("stages: 5", "stages"),
        ("stages: {rl: {temperature: 0}}", "stages.rl.temperature"),
        ("stages: {rl: {top_p: 1.1}}", "stages.rl.top_p"),
        ("stages: {rl: {temperature: .nan}}", "stages.rl.temperature"),
        ("lockstep: perhaps", "lockstep"),
        ("retriever: {kind: bm26}", "retriever.kind"),
        ("model: {dtype: float8}", "model.dtype"),
        ("model: {max_context: 8}", "model.max_context"),
        ("stages: {sft: {lr: 0}}", "stages.sft.lr"),
        ("stages: {sft: {mix: {planner: much}}}", "stages.sft.mix.planner"),
        ("eval: {bootstrap: 1}", "eval.bootstrap"),
        ("data: {world: {kind: flat}}", "data.world.kind"),
        ("data: {world: {entities: {train: few}}}", "data.world.entities.train"),
        ("method: {name: sarch_r1}", "method"),
        ("method: {alpha: 0.5}", "method"),
    ],
)
def test_a_bad_value_is_named_by_its_key(write: Write, content: str, key: str) -> None:
    assert f"run.yaml: {key}: " in message(write(content))


@pytest.mark.parametrize("content", ["method: {name: decor, alpha: 2}", "method: {name: decor, aplha: 0.5}"])
def test_an_option_of_a_method_is_named_as_it_is_written(write: Write, content: str) -> None:
    assert "method.decor" not in message(write(content))
    assert "run.yaml: method.a" in message(write(content))


def test_a_part_of_an_optimizer_is_named_as_it_is_written(write: Write) -> None:
    assert "run.yaml: stages.rl.optimizer.warmup: " in message(write("stages: {rl: {optimizer: {warmup: -1}}}"))


def test_more_faults_are_counted(write: Write) -> None:
    assert message(write("stages: {rl: {a: 1, b: 2, c: 3}}")).endswith("(and 2 more)")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("seed: [1", "not YAML"),
        ("a: b: c", "not YAML"),
        ("\tseed: 1", "not YAML"),
        ("seed: !!python/object:os.system x", "not YAML"),
        ("- 1\n- 2", "config: write a mapping"),
        ("just text", "config: write a mapping"),
        ("7", "config: write a mapping"),
        ("1: 2", "run.yaml: 1: "),
    ],
)
def test_what_is_no_mapping_in_yaml(write: Write, content: str, reason: str) -> None:
    assert reason in message(write(content))


def test_a_missing_file_is_named_with_the_next_step(tmp_path: Path) -> None:
    text = message(tmp_path / "absent.yaml")
    assert "absent.yaml: no such config file" in text
    assert "configs/" in text


def test_a_folder_or_bytes_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in message(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    assert "cannot be read" in message(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("seed", "write key.sub=value"),
        ("=3", "write key.sub=value"),
        ("", "write key.sub=value"),
        ("seed.deep=3", "seed is a value"),
        ("model.scratch={hidden: 50, heads: 7}", "model.scratch: hidden 50 is no multiple of heads 7"),
        ("model.scratch.head_dim=9", "model.scratch.head_dim: Input should be a multiple of 2"),
        ("model.lora={rank: 0}", "model.lora.rank: Input should be greater than"),
        ("seed=" + 2000 * "[", "nested too deeply"),
        ("seed=[1", "not YAML"),
        ("seed=many", "seed: "),
        ("sed=3", "sed: unknown key"),
        ("stages.rl.stepz=3", "stages.rl.stepz: unknown key"),
        ("stages.rl..steps=3", "unknown key"),
    ],
)
def test_a_bad_override_says_so(write: Write, override: str, reason: str) -> None:
    assert reason in message(write("seed: 3"), [override])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("data: {world: null}", "data.corpus"),
        ("data: {world: null, corpus: c, train: t, dev: d}", "data.test"),
        ("data: {corpus: c}", "exclude each other"),
    ],
)
def test_data_comes_from_one_source(write: Write, content: str, reason: str) -> None:
    assert reason in message(write(content))


def test_data_may_come_from_files(write: Write) -> None:
    assert load_config(write("data: {world: null, corpus: c, train: t, dev: d, test: e}")).data.corpus == "c"


def test_a_fingerprint_is_that_of_the_values(write: Write) -> None:
    assert load_config(write("seed: 0")).fingerprint == RunConfig().fingerprint
    assert load_config(write("seed: 1")).fingerprint != RunConfig().fingerprint


def test_a_config_that_is_no_json_is_an_input_error() -> None:
    with pytest.raises(InputError):
        read_json_config("{")


@pytest.mark.parametrize("content", ["data: {world: {entities: {train: -5}}}", "data: {world: {questions: {train: -1}}}", "threads: -1"])
def test_counts_are_not_negative(write: Write, content: str) -> None:
    message(write(content))


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        ("{plannr: 1.0}", "decor has no role 'plannr'; it has planner, filter, answerer"),
        ("{planner: 0.5}", "shares add up to 0.5; make it 1"),
        ("{planner: -1, filter: 1}", "greater than or equal to 0"),
        ("{planner: .nan}", "stages.sft.mix"),
    ],
)
def test_the_mix_is_of_the_methods_roles(mix: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"method: {{name: decor, condenser: extractive}}\nstages: {{sft: {{mix: {mix}}}}}\n")
    with pytest.raises(InputError, match=reason):
        load_config(tmp_path / "c.yaml")


def test_a_rollout_stage_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sft, rl = RunConfig().schedule
    again = replace(rl, name="again", data="plans")
    monkeypatch.setattr(Decor, "schedule", lambda self: (sft, rl, Stage("plans", "rollout", "rl"), again, replace(again, name="more")))
    monkeypatch.setattr(Decor, "prepare", lambda self, trajectory: None)
    stages = {"plans": {"samples": 3, "lengths": {"planner": 9}}, "rl": {"steps": 5}, "again": {"steps": 7}, "sft": {"steps": 33}}
    config = make_config({"stages": stages}, "here")
    assert (config.rollout("plans").samples, config.rollout("plans").lease_tries) == (3, 3)
    assert config.method_in(config.schedule[2]).roles["planner"].max_tokens == 9
    assert [config.steps_before(stage) for stage in config.schedule] == [0, 0, 0, 5, 12]
    assert config.steps_before(config.schedule[4], 4) == 16  # each in whole blocks
    for key in ("steps", "optimizer", "checkpoint_every"):
        with pytest.raises(InputError, match=rf"plans.{key}: unknown key"):
            make_config({"stages": {"plans": {key: {}}}}, "here")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("stages.sft.optimizer.betas", "[2, 3]", "betas.0: Input should be less than 1"),
        ("stages.sft.optimizer.betas", "[0.9, -1]", "betas.1: Input should be greater than or equal to 0"),
        ("stages.sft.optimizer.weight_decay", "1e+300", "weight_decay: Input should be less than or equal to 10"),
        ("stages.sft.optimizer.max_grad_norm", ".inf", "max_grad_norm: Input should be a finite number"),
        ("stages.sft.lr", ".inf", "lr: Input should be a finite number"),
        ("stages.sft.lr", ".nan", "lr: Input should be"),
        ("stages.sft.lr", "1e+20", "lr: Input should be less than or equal to 100"),
        ("stages.sft.errors.stop_early", ".nan", "errors.stop_early: Input should be"),
        ("stages.rl.temperature", ".inf", "temperature: Input should be a finite number"),
        ("retriever.patience", ".inf", "patience: Input should be a finite number"),
        ("stages.sft.steps", str(10**23), "stages.sft.steps: is larger than any number"),
        ("stages.rl.group", str(10**13), "stages.rl.group: is larger than any number"),
        ("method.k", str(10**23), "method.k: is larger than any number"),
        ("data.world.questions.dev", str(10**23), "data.world.questions.dev: is larger than any number"),
        ("model.scratch.hidden", "10000000", "at most 1e+09; name a larger one by model.path"),
        ("model.scratch.layers", "10000000", "at most 1e+09; name a larger one by model.path"),
    ],
)
def test_numbers_that_torch_cannot_take_are_refused(write: Write, key: str, value: str, reason: str) -> None:
    said = message(write("method: {name: decor}"), [f"{key}={value}"])
    assert reason in said
    assert "\n" not in said


def test_a_seed_may_be_any_that_torch_takes(write: Write) -> None:
    assert load_config(write("{}"), [f"seed={2**63 - 1}"]).seed == 2**63 - 1


def test_sampling_ahead_is_not_for_lockstep() -> None:
    ahead = {"stages": {"rl": {"staleness": 1}}}
    assert make_config(ahead, "here").rl("rl").staleness == 1
    with pytest.raises(InputError, match=r"set stages.rl.staleness to 0, or lockstep to false"):
        make_config({**ahead, "lockstep": True}, "here")


def test_a_stage_that_is_null_is_as_if_it_were_not_given() -> None:
    """So that a preset can be played in a variant whose schedule is another."""
    with as_file(find("decomposer").preset("demo")) as file:
        with pytest.raises(InputError, match=r"has no stage 'answerer'; it has sft, joint\. Take back .* by stages\.answerer=null"):
            load_config(file, ["method.training=joint"])
        config = load_config(file, ["method.training=joint", "stages.planner=null", "stages.plans=null", "stages.answerer=null"])
    assert list(config.stages) == ["sft", "joint"]
    assert config.stages["joint"] == RlConfig()
    assert make_config({"stages": {"rl": None}}, "here") == RunConfig()
