"""The shared set of overrides: what it takes, what it refuses, and what it does to ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.launching.inferenceservice import ServingSpec
from rolecast.launching.learner_pod import CONTAINER_SECURITY, POD_SECURITY
from rolecast.launching.overrides import Overrides
from rolecast.launching.pytorchjob import render
from rolecast.launching.render import render_inference_service
from rolecast.launching.spec import read_spec, validated
from rolecast.launching.trainjob import own_runtime, runtime_name
from tests.refused_overrides import MALFORMED, OURS

JOB: dict[str, Any] = {"run": "s3://store/runs/demo", "stage": "rl", "image": "rolecast-learner:1"}
SERVICE: dict[str, Any] = {"kind": "agent", "uri": "s3://b/runs/r", "stage": "rl", "image": "x", "name": "team"}


def job(given: dict[str, Any]) -> dict[str, Any]:
    """A PyTorchJob's pod template."""
    template: dict[str, Any] = render(read_spec({**JOB, "overrides": given}))[0]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    return template


@pytest.mark.parametrize(("given", "message"), [*OURS, *MALFORMED])
def test_what_would_break_a_pod_or_is_ours_is_refused_with_its_key(given: dict[str, Any], message: str) -> None:
    for read in (lambda: read_spec({**JOB, "overrides": given}), lambda: validated(ServingSpec, {**SERVICE, "overrides": given}, "job")):
        with pytest.raises(InputError, match="overrides") as raised:
            read()
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"volumes": [{"name": "a", "emptyDir": None}]}, "volume a is of one kind"),  # without a limit on its size
        ({"env": {"A": {"secretKeyRef": None}}}, "a variable comes from one of"),
        ({"envFrom": [{"secretRef": None}]}, "envFrom takes one of"),
    ],
)
def test_a_kind_that_is_null_is_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_spec({**JOB, "overrides": given})


@pytest.mark.parametrize("name", ["ROLECAST_STORE", "ROLECAST_WORKDIR", "AWS_ACCESS_KEY_ID", "ROLECAST_RELEASE_KEY"])
def test_a_variable_that_rolecast_sets_is_refused(name: str) -> None:
    source = {"secretKeyRef": {"name": "x", "key": "y"}}
    with pytest.raises(InputError, match=rf"overrides\.env: variable {name} is set by Rolecast"):
        job({"env": {name: source}})


def test_threads_and_buffering_may_be_chosen() -> None:
    env = job({"env": {"GOMP_SPINCOUNT": "5", "PYTHONUNBUFFERED": ""}})["spec"]["containers"][0]["env"]
    assert [variable for variable in env if variable["name"] in ("GOMP_SPINCOUNT", "PYTHONUNBUFFERED")] == [
        {"name": "GOMP_SPINCOUNT", "value": "5"},
        {"name": "PYTHONUNBUFFERED", "value": ""},
    ]


def test_null_takes_a_default_of_ours_away_and_what_is_left_out_keeps_it() -> None:
    given = {"podSecurityContext": {"runAsUser": None, "fsGroup": None, "runAsGroup": 7}}
    security = job(given)["spec"]["securityContext"]
    ours = {"fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}
    assert security == {"runAsNonRoot": True, "runAsGroup": 7, **ours}
    assert job({})["spec"]["securityContext"] == POD_SECURITY
    assert job({})["spec"]["containers"][0]["securityContext"] == CONTAINER_SECURITY


def test_capabilities_are_added_beside_those_that_are_dropped() -> None:
    security = job({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}})["spec"]["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_null_is_another_job_than_nothing() -> None:
    """Or the launcher would adopt a job whose pods run as another user."""
    digests = {
        read_spec({**JOB, "overrides": {"podSecurityContext": given}}).digest for given in ({}, {"runAsUser": None}, {"runAsUser": 5})
    }
    assert len(digests) == 3


def test_own_labels_win_over_none_that_was_let_through() -> None:
    metadata = job({"labels": {"team": "a"}, "annotations": {"b": "c"}, "safeToEvict": False})["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["app.kubernetes.io/component"] == "learner"
    assert metadata["annotations"] == {
        "b": "c", "sidecar.istio.io/inject": "false", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }  # fmt: skip


def test_gpus_have_the_name_that_they_have_here() -> None:
    spec = read_spec(
        {**JOB, "gpus_per_node": 2, "procs_per_node": 2, "overrides": {"gpuResource": "amd.com/gpu", "extraResources": {"rdma/hca": 1}}}
    )
    [container] = render(spec)[0]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "8Gi", "amd.com/gpu": "2", "rdma/hca": "1"}
    assert container["resources"]["requests"] == {**container["resources"]["limits"], "ephemeral-storage": "2Gi"}


def test_a_trainjob_says_by_a_runtime_of_its_own_what_it_cannot_patch() -> None:
    def spec(given: dict[str, Any], **runtime: str) -> Any:
        return read_spec({**JOB, "overrides": given, "runtime": runtime})

    shared = [
        runtime_name(spec(given)) for given in ({}, {"labels": {"a": "b"}}, {"env": {"NCCL_DEBUG": "INFO"}}, {"nodeSelector": {"a": "b"}})
    ]
    assert set(shared) == {"rolecast-learner"}
    own = [
        {"runtimeClassName": "nvidia"},
        {"priorityClassName": "high"},
        {"podSecurityContext": {"runAsUser": None}},
        {"envFrom": [{"secretRef": {"name": "x"}}]},
    ]
    names = {runtime_name(spec(given)) for given in own}
    assert len(names) == len(own)
    assert all(name.startswith("rolecast-learner-") and len(name) <= 63 for name in names)
    for given in own:
        assert own_runtime(spec(given))["metadata"]["name"] == runtime_name(spec(given))  # type: ignore[index]
        with pytest.raises(InputError, match="is the administrator's, and a TrainJob cannot patch"):
            runtime_name(spec(given, kind="ClusterTrainingRuntime"))


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_a_pull_policy_is_a_trainjobs_by_a_runtime_of_its_own(policy: str) -> None:
    """The shared runtime has another one, whichever job made it, and a TrainJob has no field for it."""
    spec = read_spec({**JOB, "image_pull_policy": policy})
    runtime = own_runtime(spec)
    assert runtime is not None
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == policy
    assert runtime["metadata"]["name"] == runtime_name(spec) != runtime_name(read_spec(JOB))
    with pytest.raises(InputError, match="a TrainJob cannot patch imagePullPolicy"):
        runtime_name(read_spec({**JOB, "image_pull_policy": policy, "runtime": {"kind": "ClusterTrainingRuntime"}}))


def test_an_inferenceservice_takes_the_same_block() -> None:
    given = {
        "labels": {"team": "a"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
    }
    predictor = render_inference_service({**SERVICE, "overrides": given}, "service")["spec"]["predictor"]
    assert (predictor["labels"]["team"], predictor["nodeSelector"], predictor["runtimeClassName"]) == ("a", {"a": "b"}, "nvidia")
    assert predictor["tolerations"] == [{"key": "t", "operator": "Exists"}]
    assert "annotations" not in predictor


def test_the_set_is_read_back_as_it_was_given() -> None:
    given = {
        "podSecurityContext": {"runAsUser": None, "seLinuxOptions": {"level": "s0"}},
        "env": {"A": "b", "C": {"configMapKeyRef": {"name": "n", "key": "k"}}},
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "safeToEvict": False,
    }
    read = Overrides.model_validate(given)
    assert json.loads(read.model_dump_json(by_alias=True, exclude_none=False))["podSecurityContext"] == given["podSecurityContext"]
    assert Overrides.model_validate_json(json.dumps(read.manifest() | {"tolerations": given["tolerations"]})) == read


def test_the_keys_that_an_unknown_one_is_answered_with_are_those_that_it_takes() -> None:
    with pytest.raises(InputError, match=r"node_selector: .*; the keys are") as raised:
        validated(Overrides, {"node_selector": {"a": "b"}}, "pods.yaml")
    keys = str(raised.value).split("the keys are ")[1].split(", ")
    assert set(keys) == set(Overrides.model_json_schema(by_alias=True)["properties"])
