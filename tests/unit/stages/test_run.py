"""A run's folder: what an interrupted process left is mended before a stage works, and a broken file names itself."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial as given
from pathlib import Path
from types import SimpleNamespace

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import ArtifactError, InputError, Interrupted
from rolecast.evaluation.table import print_summary
from rolecast.learner.ranks import ALONE
from rolecast.scratch import PREFIX
from rolecast.signals import Stopped
from rolecast.stages import checkpoints
from rolecast.stages import working as module
from rolecast.stages.belonging import require_own
from rolecast.stages.evaluate import evaluate
from rolecast.stages.report import report
from rolecast.stages.run import Run, create, erase, open_run, prepare, refuse_other
from rolecast.stages.team import load_questions
from rolecast.stages.train import train
from rolecast.stages.working import _note_seconds, note_time, seconds, working
from rolecast.store.artifact import verify, writing


def test_a_stage_finds_the_artifact_whose_replacement_was_killed(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    best = run.stage("rl") / "best"
    with writing(best, "model", {}) as partial:
        (partial / "weights").write_text("w")
    best.rename(best.with_name(".best.stale"))
    with working(run, "rl"):
        verify(best, "model")


def test_a_stage_clears_what_a_process_that_was_killed_had_for_a_while(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    (run.path / f".{PREFIX}left").mkdir()
    with working(run, "rl"):
        assert not list(run.path.glob(f".{PREFIX}*"))


def test_a_run_whose_config_is_broken_names_the_file(tmp_path: Path) -> None:
    create(tmp_path / "run", RunConfig())
    (tmp_path / "run" / "run.json").write_text('{"name": ')
    with pytest.raises(InputError, match=r"run/run\.json: not JSON"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("told", [None, 1, 3, "2"])
def test_a_run_of_another_format_is_refused_in_one_line(tmp_path: Path, told: object) -> None:
    run = create(tmp_path / "run", RunConfig())
    file = run.path / "run.json"
    data = json.loads(file.read_text())
    assert data.pop("format") == 2
    file.write_text(json.dumps(data if told is None else {"format": told, **data}))
    with pytest.raises(InputError, match=r"run/run\.json was written by another version of rolecast") as caught:
        open_run(run.path)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="written by another version"):
        create(run.path, RunConfig())
    assert json.loads(file.read_text()) != {"format": 2, **data}  # it is left as it was


def test_a_run_of_an_older_format_is_told_so_though_its_config_has_other_keys(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"name": "old", "sft": {"steps": 5}, "rl": {"steps": 5}}')
    with pytest.raises(InputError, match="written by another version"):
        open_run(tmp_path / "run")


def test_a_run_is_read_back_as_it_was_made(tmp_path: Path) -> None:
    config = make_config({"stages": {"rl": {"steps": 5, "guard": {"patience": 3}}}}, "here")
    assert create(tmp_path / "run", config).config == open_run(tmp_path / "run").config == create(tmp_path / "run", config).config == config
    assert open_run(tmp_path / "run").config.rl("rl").guard.patience == 3


def test_a_new_run_that_cannot_be_filled_is_not_left_behind(tmp_path: Path) -> None:
    def fill(run: Run) -> None:
        raise InputError("a bad row")

    with pytest.raises(InputError, match="a bad row"):
        prepare(tmp_path / "new", RunConfig(), fill)
    assert not (tmp_path / "new").exists()
    create(tmp_path / "old", RunConfig())
    with pytest.raises(InputError):
        prepare(tmp_path / "old", RunConfig(), fill)
    assert (tmp_path / "old" / "run.json").exists()  # it was there before, with whatever it holds


def test_a_run_that_a_process_works_in_is_not_erased(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    with working(run, "sft"), pytest.raises(InputError, match="in use by another process"):
        erase(run.path)
    assert (run.path / "run.json").exists()
    erase(run.path)
    assert not run.path.exists()


@pytest.mark.parametrize("location", ["s3://", "s3://bucket", "http://foo/x", ""])
def test_what_is_no_place_for_a_run_is_refused(location: str) -> None:
    with pytest.raises(InputError, match=r"is no place for a run|names no run in a bucket"):
        create(location, RunConfig())


def stages(**rl: object) -> RunConfig:
    return make_config({"stages": {"rl": rl}}, "here")


def test_how_a_run_is_run_may_change_when_it_goes_on(tmp_path: Path) -> None:
    create(tmp_path / "run", RunConfig())
    config = make_config({"retriever": {"patience": 5}, "engine": {"in_flight": 9}, "stages": {"rl": {"lease_seconds": 9}}}, "here")
    assert create(tmp_path / "run", config).config == config == open_run(tmp_path / "run").config
    assert config.fingerprint == RunConfig().fingerprint


def test_what_may_change_while_a_stage_trains_may_not_when_it_has_ended(tmp_path: Path) -> None:
    run = create(tmp_path / "run", stages(questions=8))
    assert create(tmp_path / "run", stages(questions=16)).config.rl("rl").questions == 16
    with writing(run.model("rl"), "model", {}) as partial:
        (partial / "weights").write_text("w")
    said = r"stage rl has ended, so stages\.rl\.questions from 16 to 8 changes nothing"
    with pytest.raises(InputError, match=said):
        create(tmp_path / "run", stages(questions=8))
    with pytest.raises(InputError, match=said):
        refuse_other(tmp_path / "run", stages(questions=8))
    assert open_run(tmp_path / "run").config.rl("rl").questions == 16


def test_a_run_in_lockstep_keeps_how_its_work_is_cut(tmp_path: Path) -> None:
    def lockstep(batch: int, patience: float) -> RunConfig:
        return make_config({"lockstep": True, "engine": {"max_batch": batch}, "retriever": {"patience": patience}}, "here")

    create(tmp_path / "run", lockstep(8, 5))
    assert create(tmp_path / "run", lockstep(8, 6)).config.retriever.patience == 6
    with pytest.raises(InputError, match=r"differs in engine\.max_batch from 8 to 16\).*to the last bit"):
        create(tmp_path / "run", lockstep(16, 6))


def test_another_config_names_the_first_setting_and_counts_the_rest(tmp_path: Path) -> None:
    create(tmp_path / "run", RunConfig())
    with pytest.raises(InputError, match=r"another config \(differs in seed from 0 to 1\); name another folder or delete it$"):
        create(tmp_path / "run", RunConfig(seed=1))
    with pytest.raises(InputError, match=r"differs in seed from 0 to 1, and 2 more\)"):
        create(tmp_path / "run", make_config({"seed": 1, "eval": {"n": 5}, "model": {"max_context": 64}}, "here"))


def test_a_run_that_a_process_works_in_keeps_its_config(tmp_path: Path) -> None:
    run = create(tmp_path / "run", stages(questions=8))
    with working(run, "rl"), pytest.raises(InputError, match="in use by another process"):
        create(tmp_path / "run", stages(questions=16))
    assert open_run(tmp_path / "run").config.rl("rl").questions == 8


def artifact(folder: Path, kind: str, text: str) -> str:
    with writing(folder, kind, {}) as partial:
        (partial / "weights").write_text(text)
    return str(folder)


def test_an_address_may_change_and_what_lies_there_may_not(tmp_path: Path) -> None:
    first, copy, other = (artifact(tmp_path / name, "index", text) for name, text in (("a", "same"), ("b", "same"), ("c", "other")))
    run = create(tmp_path / "run", make_config({"retriever": {"index": first}}, "here"))
    shutil.rmtree(first)  # it is not asked again
    assert create(tmp_path / "run", run.config).shared == run.shared
    moved = create(tmp_path / "run", make_config({"retriever": {"index": copy}}, "here"))
    assert (moved.shared, moved.fingerprint) == (run.shared, run.fingerprint)
    assert open_run(tmp_path / "run").config.retriever.index == copy
    for index in (other, None):
        with pytest.raises(InputError, match=r"retriever\.index names another artifact than the run was made with"):
            create(tmp_path / "run", make_config({"retriever": {"index": index}}, "here"))
    assert open_run(tmp_path / "run").config.retriever.index == copy


def test_an_address_that_stays_is_not_asked_again_where_another_setting_changes(tmp_path: Path) -> None:
    index = artifact(tmp_path / "index", "index", "text")
    run = create(tmp_path / "run", make_config({"retriever": {"index": index}}, "here"))
    shutil.rmtree(index)
    again = create(tmp_path / "run", make_config({"retriever": {"index": index, "patience": 5}}, "here"))
    assert (again.config.retriever.patience, again.shared) == (5, run.shared)


def test_a_folder_that_holds_something_else_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for refused in (create, refuse_other):
        with pytest.raises(InputError, match=f"{tmp_path} exists and is not a run; name another folder"):
            refused(tmp_path, RunConfig())
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_is_named_by_the_address_that_commands_take(tmp_path: Path) -> None:
    assert Run(tmp_path, RunConfig()).place == str(tmp_path)
    assert Run(tmp_path, RunConfig(), location="s3://bucket/runs/a").place == "s3://bucket/runs/a"


def test_work_is_noted_with_the_seconds_that_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path / "run", RunConfig())
    clock = iter([100.0, 102.5])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with working(run, "rl"):
        pass
    assert seconds(run) == {"rl": 2.5}


def test_all_attempts_at_a_stage_count_however_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path / "run", RunConfig())
    clock = iter([100.0, 102.5, 200.0, 203.0, 300.0, 304.0, 400.0, 401.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for ends in (Interrupted("saved"), InputError("bad"), Stopped(15)):
        with pytest.raises(type(ends)), working(run, "rl"):
            raise ends
    with working(run, "rl"):
        pass
    assert seconds(run) == {"rl": 10.5}


def test_an_attempt_that_is_killed_counts_until_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path / "run", RunConfig())
    clock = iter([100.0, 102.5, 110.0, 112.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    note_time(run)  # nobody works there
    assert seconds(run) == {}
    monkeypatch.setattr(checkpoints.checkpoint, "save", lambda *given: run.path / "saved")
    with working(run, "rl"):
        checkpoints.save(run, "rl", 1, SimpleNamespace(ranks=ALONE), {}, 1)  # type: ignore[arg-type]
        assert seconds(run) == {"rl": 2.5}
        note_time(run)
        assert seconds(run) == {"rl": 10.0}
    assert seconds(run) == {"rl": 12.0}
    note_time(run)


DAMAGED = {
    "not UTF-8": b"\xff\n",
    "not JSON": b'{"step": \n',
    "too deeply": 100_000 * b"[" + b"\n",
    "cut": b"",
    "no object": b"[[1]]\n",
    "other things": b'{"step": "a", "sft": [], "x": {}}\n',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("name", ["seconds.json", "origins.json", "sft/segments.json", "sft/metrics.jsonl"])
def test_a_run_whose_side_file_is_damaged_names_it(name: str, content: bytes, tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    file = run.path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    if not content and name.endswith("l"):
        return  # no rows
    with pytest.raises(ArtifactError) as caught:
        report(run)
    assert str(caught.value).startswith(f"{file}")
    assert "is damaged" in str(caught.value)
    assert "delete" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_summary_that_is_damaged_is_to_be_written_anew(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"summary\.json is damaged .*; write it anew by `rolecast report`"):
        print_summary(tmp_path / "summary.json")


def test_a_stages_seconds_add_up_over_its_attempts(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    for spent in (0.26, 1.26):
        _note_seconds(run, "rl", spent)
    _note_seconds(run, "sft", 2)
    assert seconds(run) == {"rl": 1.6, "sft": 2}


def test_a_record_of_seconds_that_is_cut_off_names_itself(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    with working(run, "sft"):
        pass
    file = run.path / "seconds.json"
    file.write_text(file.read_text()[:-3])
    with pytest.raises(ArtifactError, match=r"seconds\.json is damaged"):
        seconds(run)


def test_questions_of_a_world_that_was_cut_off_between_two_lines_are_not_taken(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    with writing(run.world, "world", {}) as partial:
        rows = [json.dumps({"id": f"q{n}", "question": "Who?", "answers": ["x"]}) + "\n" for n in range(2)]
        (partial / "train.jsonl").write_text("".join(rows))
    assert len(load_questions(run, "train")) == 2
    (run.world / "train.jsonl").write_text(rows[0])
    with pytest.raises(ArtifactError, match=r"train\.jsonl is missing or does not match the manifest of its world"):
        load_questions(run, "train")


def test_an_evaluation_that_is_cut_off_is_not_reported(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    with writing(run.evaluation("sft"), "evaluation", {}) as partial:
        (partial / "result.json").write_text('{"em": 0.5}')
    (run.evaluation("sft") / "result.json").write_text('{"em": ')
    with pytest.raises(ArtifactError, match=r"result\.json is missing or does not match the manifest of its evaluation"):
        report(run)
    with pytest.raises(ArtifactError, match=r"result\.json is missing or does not match"):
        evaluate(run, "sft")


@pytest.mark.parametrize("place", ["sft/model", "eval/rl"])
def test_an_artifact_that_another_config_made_is_named(tmp_path: Path, place: str) -> None:
    """As after an edit of run.json by hand."""
    run = create(tmp_path / "run", RunConfig())
    with writing(run.path / place, "any", run.made):
        pass
    file = run.path / "run.json"
    written = file.read_text()
    for key, refused in (("refill", False), ("lease_seconds", False), ("group", True)):
        file.write_text(re.sub(rf'"{key}": [0-9.]+', f'"{key}": 3', written))
        assert file.read_text() != written
        edited = open_run(run.path)
        if not refused:
            require_own(edited)
            continue
        for use in (require_own, report, given(train, name="sft"), given(evaluate, stage="rl")):
            with pytest.raises(InputError, match=rf"{place} was made with other settings than .*run/run\.json has"):
                use(edited)


def test_a_model_that_another_run_made_may_have_another_config(tmp_path: Path) -> None:
    run = Run(tmp_path, make_config({"stages": {"sft": {"model": "elsewhere"}}}, "here"))
    with writing(run.model("sft"), "model", {"fixed": "other"}):
        pass
    require_own(run)
