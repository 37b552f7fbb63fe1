"""The runs of a comparison: what they share, what is made equal, what stays a method's own, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.evaluation.cost import Cost
from rolecast.stage_settings import RlConfig, SftConfig
from rolecast.stages import tasks
from rolecast.stages.compared import compare, finished
from rolecast.stages.comparison import NO_END, Member, plan, sft_rows
from rolecast.stages.run import create
from rolecast.stages.working import _note_seconds
from rolecast.store.artifact import write_text, writing


def by_label(members: list[Member]) -> dict[str, RunConfig]:
    return {member.label: member.config for member in members}


def sft_of(config: RunConfig) -> SftConfig:
    [stage] = [stage for stage in config.stages.values() if isinstance(stage, SftConfig)]
    return stage


def test_all_share_what_the_first_one_says_and_have_one_budget() -> None:
    members = plan(["decor", "search_r1:ppo"], [0, 3], 5000)
    assert [member.key for member in members] == ["decor-0", "search_r1-ppo-0", "decor-3", "search_r1-ppo-3"]
    decor, ppo = members[0].config, members[1].config
    assert (decor.data, decor.retriever, decor.judge, decor.eval, decor.lockstep) == (
        ppo.data,
        ppo.retriever,
        ppo.judge,
        ppo.eval,
        ppo.lockstep,
    )
    assert decor.model == ppo.model
    assert decor.model.max_context == 512  # of search_r1's preset, which needs more than decor's 384
    assert [member.config.budget for member in members] == [5000] * 4
    assert [member.config.seed for member in members] == [0, 0, 3, 3]
    assert ppo.method.model_dump()["algorithm"] == "ppo"
    assert ppo.stages["rl"].group == 5  # type: ignore[attr-defined]  # a method's own


def test_rows_of_sft_and_drills_are_those_of_the_first() -> None:
    one = by_label(plan(["decor", "search_r1"], [0], 5000))
    assert sft_rows(one["decor"]) == sft_rows(one["search_r1"]) == 1800 * 16
    assert sft_of(one["search_r1"]).drills == 640
    other = by_label(plan(["search_r1", "decor"], [0], 5000))
    assert sft_rows(other["decor"]) == 1400 * 16
    assert sft_of(other["decor"]).errors.stop_early == 0.55  # its own teacher


def test_rows_are_equal_where_batches_differ(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(
        "method: {name: search_r1, prompts: compact}\nstages: {sft: {steps: 7, batch: 8, drills: 3}}\nmodel: {max_context: 999}\n"
    )
    found = by_label(plan(["decor", str(tmp_path / "small.yaml")], [0], 5000))
    assert (sft_of(found["small"]).batch, sft_of(found["small"]).steps, sft_of(found["small"]).drills) == (8, 3600, 1280)
    assert found["decor"].model.max_context == 999


def test_rl_goes_on_until_the_budget_is_spent_unless_its_steps_are_given() -> None:
    def steps(*overrides: str) -> int:
        stage = by_label(plan(["decor"], [0], 5000, overrides))["decor"].stages["rl"]
        assert isinstance(stage, RlConfig)
        return stage.steps

    assert (steps(), steps("stages.rl.steps=3")) == (NO_END, 3)


def test_an_untrained_method_is_taught_only_where_the_model_is_from_scratch(tmp_path: Path) -> None:
    found = by_label(plan(["decor", "direct"], [0], 5000))["direct"]
    assert (sft_rows(found), sft_of(found).drills, sft_of(found).lr, found.budget) == (1800 * 16, 640, 3e-3, None)
    assert (sft_of(found).mix, sft_of(found).errors.stop_early) == ({}, 0.0)  # what decor's teacher does is decor's
    assert found.method.prompts == "compact"  # as the first has it
    assert found.model.max_context == 384  # direct asks for none of its own
    (tmp_path / "real.yaml").write_text(f"method: {{name: decor}}\nmodel: {{path: {tmp_path}}}\n")
    assert sft_rows(by_label(plan([str(tmp_path / "real.yaml"), "direct"], [0], 5000))["direct"]) == 0


def test_an_override_changes_every_method_that_has_its_key() -> None:
    found = by_label(
        plan(["decor", "search_r1", "direct"], [0], 5000, ["stages.rl.group=3", "method.alpha=1", "eval.n=7", "stages.sft.steps=10"])
    )
    assert [found[name].stages["rl"].group for name in ("decor", "search_r1")] == [3, 3]  # type: ignore[attr-defined]
    assert found["decor"].method.model_dump()["alpha"] == 1
    assert {config.eval.n for config in found.values()} == {7}
    assert {sft_rows(config) for config in found.values()} == {160}
    assert by_label(plan(["decor", "search_r1"], [0], 5000, ["model.max_context=300"]))["search_r1"].model.max_context == 300


@pytest.mark.parametrize(
    ("methods", "seeds", "overrides", "said"),
    [
        ([], [0], [], "name at least one method"),
        (["decor"], [], [], "name at least one seed"),
        (["decor", "decor"], [0], [], "method decor is named twice"),
        (["decor"], [1, 1], [], "seed 1 is named twice"),
        (["decor", "nobody"], [0], [], "unknown method 'nobody'"),
        (["decor:none"], [0], [], "has no preset 'none'"),
        (["none.yaml"], [0], [], "no such config file"),
        (["decor"], [0], ["method.reward=format"], "none of decor has that key"),
        (["direct"], [0], ["stages.rl.group=2"], "none of direct has that key"),
        (["decor"], [0], ["seed=4"], "a comparison sets seed of its runs itself"),
        (["decor"], [0], ["budget=4"], "a comparison sets budget of its runs itself"),
        (["decor"], [0], ["stages.rl.optimizer.schedule=cosine"], "add --set stages.rl.optimizer.schedule=constant"),
    ],
)
def test_what_cannot_be_compared_is_refused(methods: list[str], seeds: list[int], overrides: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(methods, seeds, 5000, overrides)


def test_a_schedule_that_decays_over_given_steps_is_no_fault() -> None:
    assert plan(["decor"], [0], 5000, ["stages.rl.optimizer.schedule=cosine", "stages.rl.steps=9"])


class Done:
    """Runs that have ended, with scores as told."""

    def __init__(self, out: Path, members: list[Member], index: str = "one index", words: str = "plain") -> None:
        self.out, self.members = out, members
        for member in members:
            run = create(out / member.key, member.config)
            with writing(run.index, "index", {}) as partial:
                (partial / "corpus.jsonl").write_text(index)
                (partial / "index.json").write_text(words)
                (partial / "ranker").write_text(member.key)  # its last bits may differ
            for name in ("sft", "rl"):
                made = {"cost": asdict(Cost(5000, context={"planner": 40})), "ended": "budget"}
                with writing(run.model(name), "model", made if name == "rl" else {}):
                    pass
                self.evaluation(member, name, [1.0, 0.0] if name == "sft" else [1.0, 1.0])
            (run.stage("rl") / "metrics.jsonl").write_text(
                '{"step": 0, "dev/em": 0.25}\n{"step": 2, "tokens/sampled": 4000, "dev/em": 0.5}\n'
            )
            _note_seconds(run, "rl", 30.0)
            write_text(run.path / "summary.json", "{}")

    def evaluation(self, member: Member, stage: str, scores: list[float], asked: str = "Which?") -> None:
        run = create(self.out / member.key, member.config)
        with writing(run.evaluation(stage), "evaluation", {}) as partial:
            (partial / "result.json").write_text(json.dumps({"headline": "em", "cost": asdict(Cost(20, context={"planner": 50}))}))
            rows = [
                {"id": str(n), "question": asked, "golds": [str(member.config.seed)], "scores": {"em": em, "f1": em}}
                for n, em in enumerate(scores)
            ]
            (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def done(tmp_path: Path) -> Done:
    return Done(tmp_path, plan(["decor", "search_r1"], [0, 1], 5000))


def test_what_the_runs_came_to_is_written_as_numbers_and_as_a_page(done: Done) -> None:
    found = compare(done.out, done.members)
    assert json.loads((done.out / "comparison.json").read_text())["methods"][0]["mean"] == 1.0
    assert "Head to head" in (done.out / "comparison.html").read_text()
    decor: dict[str, Any] = found["methods"][0]
    assert (decor["n"], decor["start"]["mean"], decor["ended"]) == (4, 0.5, ["budget"])
    assert decor["curves"] == {0: [[0.0, 0.25], [4000.0, 0.5]], 1: [[0.0, 0.25], [4000.0, 0.5]]}
    assert (decor["training"]["sampled"], decor["training"]["context"], decor["evaluation"]["sampled"]) == (5000, {"planner": 40}, 10)
    assert (found["budget"], found["sft_rows"], found["max_context"]) == (5000, {"decor": 28800, "search_r1": 28800}, 512)
    assert list(found["configs"]) == ["decor", "search_r1"]
    assert found["pairs"][0]["mean"] == 0.0


def test_a_run_that_has_not_ended_is_named(done: Done) -> None:
    (done.out / "search_r1-1" / "summary.json").unlink()
    run = create(done.out / "search_r1-1", done.members[-1].config)
    assert not finished(run)
    with pytest.raises(InputError, match="search_r1-1 has not ended"):
        compare(done.out, done.members)


def test_runs_that_were_asked_other_questions_are_not_compared(done: Done) -> None:
    done.evaluation(done.members[1], "rl", [1.0, 0.0], asked="Who?")
    with pytest.raises(InputError, match=r"search_r1-0 and .*decor-0 were not asked the same questions"):
        compare(done.out, done.members)


@pytest.mark.parametrize("other", [{"index": "another index"}, {"words": "unicode"}])
def test_runs_over_another_index_are_not_compared(tmp_path: Path, other: dict[str, str]) -> None:
    members = plan(["decor", "search_r1"], [0], 5000)
    Done(tmp_path, members[:1])
    Done(tmp_path, members[1:], **other)
    with pytest.raises(InputError, match=r"search_r1-0 and .*decor-0 search another index"):
        compare(tmp_path, members)


def test_the_pipelines_step_finds_the_runs_by_label_and_seed(done: Done, tmp_path: Path) -> None:
    named = json.dumps([[member.label, member.config.seed] for member in done.members])
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    assert tasks.compare(str(done.out), named, str(page), str(numbers)) == str(done.out)
    assert page.read_text() == (done.out / "comparison.html").read_text()
    assert json.loads(numbers.read_text()) == json.loads((done.out / "comparison.json").read_text())
