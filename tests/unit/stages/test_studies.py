"""The studies' runs and evaluations: what they change of a method's preset, what they refuse, and what they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.retriever.long import LongPassages
from rolecast.stage_settings import RlConfig, SftConfig
from rolecast.stages import long_context
from rolecast.stages.long_context import Setting, study_contexts
from rolecast.stages.run import Run, create
from rolecast.stages.stability import plan_stability, study_stability
from rolecast.store.artifact import writing
from tests.tiny import RENDERER


def test_runs_of_stability_have_no_guard_and_go_to_the_last_step_with_and_without_sft() -> None:
    members = plan_stability(["decor", "search_r1:ppo"], [0, 1], [20, 5], [True, False], ["stages.rl.group=3"])
    assert [member.key for member in members[:4]] == ["decor-0", "decor-1", "decor-without-sft-0", "decor-without-sft-1"]
    assert len(members) == 8
    for member in members:
        rl, sft = member.config.stages["rl"], member.config.stages["sft"]
        assert isinstance(rl, RlConfig)
        assert isinstance(sft, SftConfig)
        assert (rl.steps, rl.guard.fraction, rl.group) == (20, 0.0, 3)
        assert rl.idle_steps is None
        assert (sft.steps == 0) == ("without-sft" in member.label)
        assert member.config.budget is None
    assert members[0].config.model.max_context == 384  # its own preset
    assert members[-1].config.method.model_dump()["algorithm"] == "ppo"


@pytest.mark.parametrize(
    ("methods", "steps", "said"),
    [
        (["direct"], [5], "direct is not trained by reinforcement"),
        (["decor"], [5, 5], "step 5 is named twice"),
        (["decor"], [], "at least one step"),
    ],
)
def test_what_cannot_collapse_is_refused(methods: list[str], steps: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_stability(methods, [0], steps, [True])


def test_stability_is_read_from_the_runs_metrics(tmp_path: Path) -> None:
    members = plan_stability(["decor"], [0, 1], [30, 60], [True, False])
    for member in members:
        run = create(tmp_path / member.key, member.config)
        falls = member.config.seed == 1
        rows = [
            {"step": step, "dev/em": 0.0 if falls and step >= 40 else 0.5, "tokens/planner": 9.0, "tokens/sampled": 5.0}
            for step in range(0, 70, 10)
        ]
        run.stage("rl").mkdir(parents=True)
        (run.stage("rl") / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run.path / "origins.json").write_text(json.dumps({"rl": [{"commit": "c", "command": "rolecast stability", "machine": "m"}]}))
    found = study_stability(tmp_path, members, [60, 30])
    assert [(row["method"], row["sft"], [rate["collapsed"] for rate in row["rates"]]) for row in found["rows"]] == [
        ("decor", True, [0, 1]), ("decor", False, [0, 1]),
    ]  # fmt: skip
    assert list(found["rows"][0]["lengths"]) == ["planner"]
    assert json.loads((tmp_path / "stability.json").read_text())["origin"]["commits"] == ["c"]
    assert "Collapse rates" in (tmp_path / "stability.html").read_text()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    member = plan_stability(["search_r1"], [4], [5], [True])[0]
    return create(tmp_path / "a-run", member.config)


class Evaluated:
    """Stands in for an evaluation; notes how it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any, dict[str, Any]]] = []
        monkeypatch.setattr(long_context, "evaluate_as", self)

    def __call__(self, run: Run, stage: str, name: str, config: Any, switches: dict[str, Any], around: Any) -> Path:
        self.asked.append((name, config, switches))
        self.around = around
        folder = run.evaluation(stage, name)
        folder.mkdir(parents=True, exist_ok=True)
        result = {
            "headline": "em", "em": 0.5, "ci95": [0.25, 0.75], "status": {"ok": 15, "length": 5}, "searches_per_question": 1.5, "n": 20,
            "cost": {"context": {"searcher": 70 * config.method.k}, "prompt": 4000},
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result))
        return folder


def test_each_k_is_an_evaluation_of_its_own_with_longer_passages(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = Evaluated(monkeypatch)
    found = study_contexts(tmp_path / "out", [run], [3, 10], Setting(200, 4096, 20, ["method.observation_tokens=2000"]))
    (first, config, switches), (second, other, _) = evaluated.asked
    assert first.startswith("k3-200t-4096c-n20-")
    assert second.startswith("k10-200t-4096c-n20-")
    assert (config.method.k, other.method.k, config.method.observation_tokens) == (3, 10, 2000)
    assert (config.model.max_context, config.eval.n, config.engine.max_batch) == (4096, 20, 8)
    assert config.model.scratch == run.config.model.scratch
    assert switches == {"k": 3, "passage_tokens": 200, "max_context": 4096, "overrides": ["method.observation_tokens=2000"]}
    assert [(row["run"], row["k"], row["context"], row["cut"], row["prompt"]) for row in found["rows"]] == [
        ("a-run", 3, {"searcher": 210}, 0.25, 200.0), ("a-run", 10, {"searcher": 700}, 0.25, 200.0),
    ]  # fmt: skip
    assert json.loads((tmp_path / "out" / "contexts.json").read_text()) == json.loads(json.dumps(found))
    assert "How contexts grow" in (tmp_path / "out" / "contexts.html").read_text()


def test_other_settings_are_other_evaluations() -> None:
    names = {
        Setting(*given).name(3)
        for given in ((200, 4096, 20), (100, 4096, 20), (200, 512, 20), (200, 4096, 9), (200, 4096, 20, ["method.a=1"]))
    }
    assert len(names) == 5


def test_passages_are_lengthened_from_the_runs_own_corpus(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = Evaluated(monkeypatch)
    study_contexts(tmp_path / "out", [run], [3], Setting(200, 4096, 20))
    inner: Any = object()
    with pytest.raises(InputError, match="a-run has no index of its own to lengthen passages from; give --passage-tokens 0"):
        evaluated.around(inner, RENDERER)
    with writing(run.index, "index", {}) as partial:
        (partial / "corpus.jsonl").write_text('{"id": "p", "title": "t", "text": "a text"}\n')
    made = evaluated.around(inner, RENDERER)
    assert isinstance(made, LongPassages)
    assert (made.inner, made.tokens, [passage.id for passage in made.corpus]) == (inner, 200, ["p"])
    study_contexts(tmp_path / "out", [run], [3], Setting(0, 4096, 20))
    assert evaluated.around(inner, RENDERER) is inner


@pytest.mark.parametrize(("overrides", "key"), [(["method.depth=3"], "method.depth"), (["seed=3"], "seed"), (["k=3"], "k")])
def test_keys_that_are_not_the_methods_are_refused_before_any_work(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, overrides: list[str], key: str
) -> None:
    evaluated = Evaluated(monkeypatch)
    with pytest.raises(InputError, match=f"search_r1 has no key '{key}'"):
        study_contexts(tmp_path / "out", [run], [3], Setting(200, 4096, 20, overrides))
    assert evaluated.asked == []
