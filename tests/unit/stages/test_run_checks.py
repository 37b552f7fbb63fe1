"""What cannot work is refused before any work, in one line with the next step."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast import devices
from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.installed import MissingPackageError
from rolecast.launching.local_pipeline import run_local
from rolecast.methods.direct.method import Direct
from rolecast.stages import tasks
from rolecast.stages.checks import check_run, require_engine, require_ranks
from rolecast.stages.index import index
from rolecast.stages.run import create
from rolecast.stages.train import train
from tests.tiny import RENDERER, tiny_model

CHAIN = [
    {"subject": "A B", "relation": "twin", "object": "C D", "fact": "The twin of A B is C D.", "query": "twin of A B", "passage": "p1"}
]


def own(folder: Path, chains: int = 0, **changes: Any) -> RunConfig:
    """A run on data of its own, of whose four training questions some have a gold chain."""
    for split in ("train", "dev", "test"):
        rows = [{"id": f"{split}{n}", "question": f"Who is {n} of {split}?", "answers": ["x"]} for n in range(4)]
        rows = [{**row, "chain": CHAIN} if n < chains and split == "train" else row for n, row in enumerate(rows)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"world": None, "corpus": "c", **{split: str(folder / f"{split}.jsonl") for split in ("train", "dev", "test")}}
    return make_config({"method": {"name": "decor"}, "data": data, "stages": {"sft": {"steps": 0}}, **changes}, "here")


def refused(config: RunConfig, *words: str, location: str = "runs/a", stage: str | None = None) -> None:
    with pytest.raises(InputError) as caught:
        check_run(config, location, stage)
    for word in words:
        assert word in str(caught.value)


def test_a_run_on_an_invented_world_passes() -> None:
    check_run(RunConfig(), "runs/a")


def test_workers_without_a_store() -> None:
    config = make_config({"rollouts": "workers"}, "here")
    refused(config, "runs/a is a folder", "s3://bucket/prefix/NAME")
    check_run(config, "s3://b/p/a")
    check_run(config, "runs/a", "sft")  # which asks no worker for anything
    check_run(make_config({"rollouts": "workers", "stages": {"rl": {"steps": 0}}}, "here"), "runs/a")


def test_a_method_that_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Direct, "schedule", lambda self: ())
    refused(make_config({"method": {"name": "direct"}}, "here"), "direct is not trained", "rolecast methods")


def test_deepspeed_without_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RANK", raising=False)
    config = make_config({"learner": {"name": "deepspeed"}}, "here")
    for begin in (
        lambda: require_ranks(config),
        lambda: train(create(tmp_path / "r", config), "sft"),
        lambda: run_local(tmp_path / "p", config),
    ):
        with pytest.raises(InputError, match="add --procs N, one for each GPU"):
            begin()
    assert not (tmp_path / "p").exists()  # nothing was begun
    require_ranks(config, procs=1)
    require_ranks(RunConfig())
    monkeypatch.setenv("RANK", "0")
    require_ranks(config)


def test_vllm_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before SFT, for who goes through all stages here; a machine that teaches alone needs none, nor one whose episodes are played elsewhere."""
    monkeypatch.setattr("rolecast.stages.checks.find_spec", lambda name: None)
    lacking = make_config({"engine": {"name": "vllm"}, "model": {"dtype": "bfloat16", "lora": {}}}, "here")
    for stage in (None, "rl"):
        with pytest.raises(MissingPackageError, match=r"vllm is not installed; .*\[vllm\]"):
            require_engine(lacking, stage)
    require_engine(lacking, "sft")
    require_engine(lacking.model_copy(update={"rollouts": "workers"}), "rl")
    require_engine(RunConfig())
    with pytest.raises(MissingPackageError, match="vllm is not installed"):
        run_local(tmp_path / "run", lacking)
    assert not (tmp_path / "run").exists()
    run = create(tmp_path / "trained", lacking)
    with pytest.raises(MissingPackageError, match="vllm is not installed"):
        train(run, "rl")


@pytest.mark.parametrize(("found", "most"), [((4, "GPUs"), 4), ((1, "cores"), 2)])
def test_more_processes_than_there_is_to_train_on(monkeypatch: pytest.MonkeyPatch, found: tuple[int, str], most: int) -> None:
    monkeypatch.setattr(devices, "count", lambda: found)
    require_ranks(RunConfig(), procs=most)
    with pytest.raises(InputError, match=f"--procs {most + 1}: this machine has {found[0]} {found[1]}; give at most {most}$"):
        require_ranks(RunConfig(), procs=most + 1)


def test_sft_on_invented_worlds_for_a_run_on_its_own_data(tmp_path: Path) -> None:
    config = own(tmp_path, 4, stages={"sft": {"steps": 5}})
    refused(config, "stages.sft imitates a scripted teacher on invented worlds", "stages.sft.invented")
    refused(config, "stages.sft", stage="sft")
    check_run(config, "runs/a", "rl")
    check_run(own(tmp_path, 4, stages={"sft": {"steps": 5, "invented": True}}), "runs/a")
    check_run(own(tmp_path, 4, stages={"sft": None}), "runs/a")  # no SFT, as papers train


def test_demonstrations_that_are_not_there(tmp_path: Path) -> None:
    config = own(tmp_path, 4, stages={"sft": {"steps": 5, "demonstrations": str(tmp_path / "none")}})
    refused(config, "no demonstrations; name a file of conversations")
    check_run(config, "s3://bucket/runs/a")  # where its jobs may see them
    (tmp_path / "some.jsonl").write_text("")
    check_run(own(tmp_path, 4, stages={"sft": {"steps": 5, "demonstrations": str(tmp_path / "some.jsonl")}}), "runs/a")


def test_a_language_model_is_not_taught_what_is_the_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    RENDERER.tokenizer.save_pretrained(tmp_path / "model")
    path = {"path": str(tmp_path / "model")}
    compact = {"name": "decor", "prompts": "compact"}
    stages = {"sft": {"steps": 5, "drills": 2}}
    check_run(make_config({"model": path, "method": compact, "stages": stages}, "here"), "runs/a")  # the small model itself
    monkeypatch.setattr("rolecast.world.tokenizer.demo_tokenizer", lambda: SimpleNamespace(get_vocab=lambda: {"a word that it lacks": 0}))
    refused(make_config({"model": path, "stages": stages}, "here"), "reading drills in the demo's invented words")
    refused(make_config({"model": path, "method": compact, "stages": {"sft": {"steps": 5}}}, "here"), "shorthand", "prompts to instruct")
    check_run(make_config({"model": path, "stages": {"sft": {"steps": 5}}}, "here"), "runs/a")
    check_run(make_config({"model": path, "method": compact, "stages": {"sft": None}}, "here"), "runs/a")


def test_a_judge_that_can_score_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    refused(own(tmp_path), "train.jsonl", "no question has a gold chain", "set judge.model", "or method.alpha to 1")
    check_run(own(tmp_path, method={"name": "search_r1"}), "runs/a")  # judged by its answers alone
    check_run(own(tmp_path, method={"name": "decor", "alpha": 1.0}), "runs/a")
    check_run(own(tmp_path), "runs/a", "sft")
    assert not caplog.records
    check_run(own(tmp_path, 3), "runs/a")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 of 4 questions have no gold chain; the lexical judge leaves decor.planner unscored there, so roles that it judges learn nothing from "
        "them; set judge.model to a model that needs none (see `rolecast judge serve`), or method.alpha to 1, by which every role earns the "
        "team's reward alone"
    ]
    check_run(own(tmp_path, judge={"model": "some-model"}), "runs/a")
    monkeypatch.setenv("ROLECAST_JUDGE_URL", "http://judge")  # where it is says nothing of what it can
    refused(own(tmp_path), "no question has a gold chain")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_same_questions_in_two_splits_are_warned_of(tmp_path: Path, split: str, caplog: pytest.LogCaptureFixture) -> None:
    config = own(tmp_path, 4)
    check_run(config, "runs/a")
    assert not caplog.records
    shutil.copy(tmp_path / "train.jsonl", tmp_path / "test.jsonl")
    if split == "dev":
        shutil.copy(tmp_path / "dev.jsonl", tmp_path / "test.jsonl")
    with caplog.at_level(logging.WARNING):
        check_run(config, "runs/a")
    assert [record.getMessage() for record in caplog.records] == [
        f"4 of 4 questions of data.test are in data.{split} too (the same id or text): results on them say nothing about others"
    ]


def test_a_model_without_chat_template_or_that_is_none(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tiny_model().save_pretrained(model)
    RENDERER.tokenizer.save_pretrained(model)
    config = make_config({"model": {"path": str(model)}}, "here")
    check_run(config, "runs/a")
    (model / "chat_template.jinja").unlink()
    refused(config, str(model), "no chat template")
    shutil.rmtree(model)
    refused(config, "no model directory")
    check_run(config, "s3://b/p/a")  # it may lie where the run's jobs are


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_that_is_cut_off_names_itself(tmp_path: Path, file: str) -> None:
    from rolecast.weights.models import CPU, DTYPES, read_model, read_tokenizer

    tiny_model().save_pretrained(tmp_path)
    RENDERER.tokenizer.save_pretrained(tmp_path)
    data = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(data[: len(data) // 2])

    def read() -> None:
        read_model(tmp_path, DTYPES["float32"], CPU)
        read_tokenizer(tmp_path)

    with pytest.raises(InputError, match=f"{tmp_path}.* cannot be loaded") as caught:
        read()
    assert "\n" not in str(caught.value)


def test_the_first_step_of_a_pipeline_on_a_cluster_checks_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rolecast.schedule import digest

    monkeypatch.delenv("ROLECAST_DIE_WITH_PARENT", raising=False)
    config = make_config({"rollouts": "workers"}, "here")
    with pytest.raises(SystemExit):
        tasks.prepare(str(tmp_path / "r"), config.model_dump_json(), digest(config.schedule))
    assert "is a folder" in capfd.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("change", [{"id": "train2"}, {"question": "Who is 2 of train?"}])
def test_single_questions_of_two_splits_are_counted(tmp_path: Path, change: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    config = own(tmp_path, 4)
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows[0], {**rows[1], **change}, rows[2]]))
    check_run(config, "runs/a")
    assert [record.getMessage()[:45] for record in caplog.records] == ["1 of 3 questions of data.test are in data.tra"]


@pytest.mark.parametrize(("steps", "drills", "warned"), [(5, 4, False), (5, 5, True), (5, 9, True), (0, 5, False)])
def test_a_stage_of_drills_alone_is_warned_of(steps: int, drills: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    check_run(make_config({"stages": {"sft": {"steps": steps, "drills": drills}}}, "here"), "runs/a")
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"stages.sft: all 5 steps are reading drills (drills = {drills}), so no turn of a role is learned"] if warned else [])


def test_gold_that_no_search_can_find_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = "".join(json.dumps({"id": f"p{n}", "title": f"T{n}", "text": f"Text {n}."}) + "\n" for n in range(9))
    (tmp_path / "c").write_text(corpus)
    config = own(tmp_path, retriever={"kind": "bm25"})
    config = config.model_copy(update={"data": config.data.model_copy(update={"corpus": str(tmp_path / "c")})})
    for split, passages in (("train", [["p1"], ["p2", "q"], ["q"]]), ("dev", [["p1"]]), ("test", [["p1"], [], ["r"]])):
        rows = [{"id": f"{split}{n}", "question": f"{n} of {split}?", "answers": ["x"], "passages": of} for n, of in enumerate(passages)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index(create(tmp_path / "run", config))
    assert [record.getMessage() for record in caplog.records] == [
        "data.train: 2 of 3 questions have gold passages that are not in data.corpus, the first one train1: no search can find them",
        "data.test: 1 of 3 questions have gold passages that are not in data.corpus, the first one test2: no search can find them",
    ]
