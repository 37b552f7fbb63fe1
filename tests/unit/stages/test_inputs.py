"""What a run's stages start from: a model that another run trained is taken as the run's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.methods.decor import Decor
from rolecast.stages.inputs import inputs
from rolecast.stages.run import Run, create, prepare
from rolecast.stages.team import first_model
from rolecast.stages.train import train
from rolecast.store.artifact import MANIFEST, writing
from rolecast.weights.models import CPU

WORLD: dict[str, Any] = {"world": {"entities": {"train": 60, "dev": 60, "test": 60}, "questions": {"train": 6, "dev": 4, "test": 4}}}


def config_with(model: Path) -> RunConfig:
    return make_config({"data": WORLD, "stages": {"sft": {"model": str(model)}}}, "here")


def trained(folder: Path, kind: str = "model", weights: str = "w") -> Path:
    with writing(folder, kind, {"stage": "sft"}) as partial:
        (partial / "weights").write_text(weights)
    return folder


def test_the_model_becomes_the_runs_own(tmp_path: Path) -> None:
    source = trained(tmp_path / "other" / "sft" / "model")
    run = prepare(tmp_path / "run", config_with(source), inputs)
    assert (run.model("sft") / MANIFEST).read_bytes() == (source / MANIFEST).read_bytes()
    assert (run.model("sft") / "weights").read_text() == "w"
    assert train(run, "sft") == run.model("sft")  # there is nothing to train
    (source / "weights").unlink()
    inputs(run)  # the run is whole without the other one


def test_a_run_of_another_model_has_another_fingerprint(tmp_path: Path) -> None:
    runs = [create(tmp_path / name, config_with(trained(tmp_path / f"{name}-model", weights=name))) for name in ("a", "b")]
    assert runs[0].fingerprint != runs[1].fingerprint
    assert runs[0].config.fingerprint == runs[1].config.fingerprint == make_config({"data": WORLD}, "here").fingerprint


def test_what_is_no_model_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is a index, not a model"):
        prepare(tmp_path / "run", config_with(trained(tmp_path / "index", "index")), inputs)


def test_a_model_that_became_another_one_is_refused(tmp_path: Path) -> None:
    source = trained(tmp_path / "model")
    run: Run = create(tmp_path / "run", config_with(source))
    trained(source, weights="another")
    with pytest.raises(InputError, match=r"stages\.sft\.model: .* holds another model than when the run was made"):
        inputs(run)
    assert not run.model("sft").exists()


def test_a_damaged_model_is_not_taken(tmp_path: Path) -> None:
    source = trained(tmp_path / "model")
    run = create(tmp_path / "run", config_with(source))
    (source / "weights").write_text("x")
    with pytest.raises(Exception, match="weights does not match the manifest"):
        inputs(run)
    assert not run.model("sft").exists()
    assert json.loads((run.path / "run.json").read_text())["shared"] == run.shared


def test_a_model_from_scratch_knows_its_methods_words_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decor, "words", ("ostrich",))
    config = make_config(
        {"method": {"name": "decor", "prompts": "compact"}, "model": {"scratch": {"hidden": 8, "heads": 1, "layers": 1}}}, ""
    )
    model, tokenizer = first_model(config, CPU)
    assert [len(tokenizer.encode(text, add_special_tokens=False)) for text in (" ostrich", "<facts>")] == [1, 1]
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)


def test_a_model_from_scratch_knows_the_words_of_its_world() -> None:
    scratch = {"model": {"scratch": {"hidden": 8, "heads": 1, "layers": 1}}}
    _, plain = first_model(make_config(scratch, ""), CPU)
    _, crowded = first_model(make_config({**scratch, "data": {"world": {"kind": "crowded"}}}, ""), CPU)
    assert not {" 1911", " earlier", " was"} & set(plain.get_vocab())
    assert [len(crowded.encode(text, add_special_tokens=False)) for text in (" 1911", " earlier", " was", " council")] == [1] * 4
