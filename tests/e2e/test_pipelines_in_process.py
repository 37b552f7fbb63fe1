"""Every pipeline runs through in this machine's processes (`launcher=local`), with runs so small that their teams know nothing.

Schedules with RL and with a rollout stage run through in test_pipeline.py and test_relay.py.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from rolecast_pipelines.comparison import make_comparison
from rolecast_pipelines.deployment import make_evaluate_and_deploy
from rolecast_pipelines.indexing import make_index_only
from rolecast_pipelines.schedule import make_pipeline

from rolecast.config import RunConfig
from rolecast.data.records import write_corpus
from rolecast.errors import InputError
from rolecast.launching.local_pipeline import run_here
from rolecast.stages.comparison import Member
from rolecast.stages.run import open_run
from rolecast.store.uri import open_store
from rolecast.types import Passage
from tests.tiny_runs import taught
from tests.weed import S3Server

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(weed: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROLECAST_WORKDIR", str(tmp_path / "work"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return f"s3://{weed.make_bucket(f'pipelines-{uuid.uuid4().hex[:12]}')}/all"


def train(run: str, config: RunConfig) -> None:
    run_here(make_pipeline(config.schedule), {"run": run, "config": config.model_dump_json()})


def test_a_schedule_of_sft_alone(tmp_path: Path) -> None:
    train(str(tmp_path / "run"), taught())
    assert set(json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]) == {"sft"}


def test_a_comparison_of_two_methods_with_two_seeds(tmp_path: Path) -> None:
    members = [Member(label, taught(seed, method={"name": name, "max_tokens": 8})) for seed in (0, 1) for label, name in METHODS]
    run_here(make_comparison(members), {"out": str(tmp_path)})
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert [row["method"] for row in found["methods"]] == ["naive_rag", "direct"]
    assert found["seeds"] == [0, 1]


METHODS = (("naive_rag", "naive_rag"), ("direct", "direct"))


def test_an_index_alone_is_built_once(bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "corpus.jsonl", [Passage(str(n), f"Title {n}", f"text of passage {n}") for n in range(20)])
    open_store(bucket).put("corpus.jsonl", (tmp_path / "corpus.jsonl").read_bytes())
    arguments = {"corpus": f"{bucket}/corpus.jsonl", "out": f"{bucket}/indexes/small", "kind": "bm25"}
    run_here(make_index_only(), arguments)
    manifest = open_store(bucket).get("indexes/small/manifest.json")
    assert manifest is not None
    run_here(make_index_only(), arguments)
    assert open_store(bucket).get("indexes/small/manifest.json") == manifest
    with pytest.raises(InputError, match="holds an index of kind bm25"):
        run_here(make_index_only(), {**arguments, "kind": "hybrid"})


def test_a_team_is_evaluated_and_deployed_only_if_it_is_better(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = json.dumps({"name": "demo", "image": "rolecast-agent:1"})

    def deploy(run: str, **more: Any) -> str:
        given = {"run": run, "stage": "sft", "service": service, "target": "record", "questions": 12, **more}
        run_here(make_evaluate_and_deploy(), given)
        kept = open_store(bucket).get("deployed/demo.json")
        assert kept is not None
        return str(json.loads(kept)["spec"]["predictor"]["containers"][0]["args"][2])

    first, second = f"{bucket}/first", f"{bucket}/second"
    for run, rate in ((first, 1e-3), (second, 2e-3)):
        train(run, taught(rate=rate))
    assert deploy(first) == first
    assert deploy(second) == first  # nobody knows anything, so neither is better
    assert deploy(second, margin=0.5) == second
    with pytest.raises(InputError, match="asked 12 test questions in common"):
        deploy(first, questions=13)
    assert open_store(first).keys("ends") == []  # told, and deleted
    assert open_run(second).manifest(open_run(second).evaluation("sft"))
