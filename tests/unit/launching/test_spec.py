from __future__ import annotations

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.errors import InputError
from rolecast.launching.spec import MAX_NAME, read_spec

BASE: dict[str, Any] = {"run": "s3://store/runs/Demo_1", "stage": "rl", "image": "rolecast-learner:1"}


def test_k1_name_and_digest_follow_from_the_spec_alone() -> None:
    assert read_spec(BASE).job_name == read_spec(dict(reversed(BASE.items()))).job_name == "rolecast-rl-demo-1-8c639fc0"
    assert read_spec(BASE).digest == read_spec(dict(reversed(BASE.items()))).digest


def test_k1_runs_with_the_same_last_part_and_stages_of_one_run_have_other_names() -> None:
    names = {
        read_spec({**BASE, "run": run, "stage": stage}).job_name for run in ("s3://a/x", "s3://b/x", "s3://a/x/") for stage in ("sft", "rl")
    }
    assert len(names) == 6


def test_a_stage_has_the_kind_that_it_is_called_after_or_is_given() -> None:
    assert [read_spec({**BASE, "stage": stage}).kind for stage in ("sft", "rollout", "rl")] == ["sft", "rollout", "rl"]
    assert [read_spec({**BASE, "stage": stage}).samples for stage in ("sft", "rollout", "rl")] == [False, True, True]
    assert [read_spec({**BASE, "stage": "second_round", "kind": kind}).samples for kind in ("sft", "rl")] == [False, True]
    assert read_spec({**BASE, "stage": "rl", "kind": "sft"}).kind == "sft"
    assert read_spec({**BASE, "stage": "second_round", "kind": "rl"}).job_name == "rolecast-second-round-demo-1-8c639fc0"


def test_the_coordinator_of_every_run_and_stage_has_a_name_of_its_own() -> None:
    names = {
        read_spec({**BASE, "run": run, "stage": stage, "kind": "rl"}).coordinator_service
        for run in ("s3://a/x", "s3://b/x")
        for stage in ("rl", "two")
    }
    assert len(names) == 4
    assert read_spec({**BASE, "name": "a" * MAX_NAME}).coordinator_service == "a" * MAX_NAME + "-coordinator"
    assert read_spec({**BASE, "namespace": "team"}).coordinator_url == "http://rolecast-rl-demo-1-8c639fc0-coordinator.team.svc:8300"


@given(st.text(string.printable, min_size=1, max_size=120))
def test_k1_every_run_gives_a_name_that_kubernetes_takes(run: str) -> None:
    for stage in ("rl", f"{'a_' * 11}aa"):
        spec = read_spec({**BASE, "run": run, "stage": stage, "kind": "rl"})
        assert len(spec.job_name) <= MAX_NAME
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", spec.coordinator_service)
        read_spec({**BASE, "name": spec.job_name})  # a name that is given is checked
        read_spec({**BASE, "labels": {"run": spec.run_label}})


def test_a_quantity_may_be_written_as_a_number() -> None:
    assert read_spec({**BASE, "cpu": 2, "memory": 1e9}).cpu == "2"
    with pytest.raises(InputError, match="cpu"):
        read_spec({**BASE, "cpu": True})


@pytest.mark.parametrize(
    "change", [{"image": "x:2"}, {"nodes": 2}, {"zero_stage": 2}, {"deadlines": {"running": 60}}, {"labels": {"a": "b"}}]
)
def test_the_digest_tells_specs_apart(change: dict[str, Any]) -> None:
    assert read_spec({**BASE, **change}).digest != read_spec(BASE).digest


def test_how_often_to_try_again_does_not_make_another_job() -> None:
    assert read_spec({**BASE, "backoff": {"retries": 5}}).digest == read_spec(BASE).digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": "Eval"}, "stage"),
        ({"stage": "2nd"}, "stage"),
        ({"stage": "a-b"}, "stage"),
        ({"memory": "1Gi", "memory_request": "1025Mi"}, "memory_request is 1025Mi and memory 1Gi: nobody may ask for more"),
        ({"cpu": "1", "cpu_request": "1500m"}, "cpu_request is 1500m and cpu 1: "),
        ({"disk_limit": "1Gi"}, "disk_request is 2Gi and disk_limit 1Gi: "),
        ({"stage": "ab_", "kind": "rl"}, "stage: String should match"),
        ({"stage": "a" * 25}, "stage"),
        ({"stage": "eval"}, "kind of stage eval is not known; set kind to sft, rollout, rl"),
        ({"stage": "eval", "kind": "eval"}, "kind"),
        ({"node": 2}, "node: Extra inputs"),
        ({"nodes": 0}, "nodes"),
        ({"zero_stage": 4}, "zero_stage"),
        ({"gpus_per_node": 8, "procs_per_node": 4}, "each process drives one GPU; make them equal"),
        ({"memory": "8 GB"}, "memory"),
        ({"shm_size": "-1Gi"}, "shm_size"),
        ({"memory": "3GiB"}, "memory: '3GiB' is no quantity above 0; write 2, 500m or 3Gi"),
        ({"cpu": 0}, "cpu: '0' is no quantity above 0"),
        ({"node_selector": {"a b": "c"}}, "node_selector"),
        ({"nonsense": 1}, "the keys are run, stage, image, cpu"),
        ({"priority": "high"}, "set queue too"),
        ({"name": "Not_A_Name"}, "name"),
        ({"name": "a" * 50}, "pods get suffixes"),
        ({"image": "a b"}, "image"),
        ({"labels": {"app.kubernetes.io/name": "x"}}, "is set by Rolecast"),
        ({"labels": {"a": "not a label"}}, "labels.a"),
        ({"tolerations": [{"operator": "Exists", "key": "a", "value": "b"}]}, "takes no value"),
        ({"tolerations": [{"value": "b"}]}, "needs a key"),
        ({"deadlines": {"pending": 0}}, "deadlines.pending"),
        ({"backoff": {"retries": -1}}, "backoff.retries"),
        ({"coordinator": {"port": 80}}, "coordinator.port"),
        ({"coordinator": {"service": "rolecast-coordinator"}}, "coordinator.service: Extra inputs"),
        ({"runtime": {"kind": "Runtime"}}, "runtime.kind"),
        ({"s3_secret": "A/B"}, "s3_secret"),
        ({"release_secret": ""}, "release_secret"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"job.yaml: .*{message}"):
        read_spec({**BASE, **change}, "job.yaml")


def test_the_wait_before_another_attempt_grows_up_to_a_limit() -> None:
    backoff = read_spec({**BASE, "backoff": {"base": 10, "limit": 35}}).backoff
    assert [backoff.delay(attempt) for attempt in range(4)] == [10, 20, 35, 35]


def test_keys_of_endpoints_need_their_secret() -> None:
    with pytest.raises(InputError, match="externals_keys names BIG_KEY, and externals_secret no Secret"):
        read_spec({**BASE, "externals_keys": ["BIG_KEY"]})
    with pytest.raises(InputError, match=r"externals_keys\.0"):
        read_spec({**BASE, "externals_secret": "s", "externals_keys": ["big-key"]})
