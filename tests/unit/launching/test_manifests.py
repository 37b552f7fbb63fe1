"""What is rendered, against golden files, against the SDKs' models, and rule by rule.

After a change that is meant: `UPDATE_GOLDEN=1 pytest tests/unit/launching/test_manifests.py`, then read the difference.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sdk_models import unknown_fields

from rolecast.errors import InputError
from rolecast.launching.render import render_inference_service, render_job, to_yaml
from rolecast.processes import TERMINATION_LOG
from rolecast.reading import read_mapping

GOLDEN = Path(__file__).parents[2] / "golden"
RENDERED = {
    "pytorchjob": ("learner", lambda values: render_job("pytorchjob", values, "spec")),
    "trainjob": ("learner", lambda values: render_job("trainjob", values, "spec")),
    "agent": ("agent", lambda values: [render_inference_service(values, "spec")]),
    "predictor": ("predictor", lambda values: [render_inference_service(values, "spec")]),
}
GOLDENS = [*RENDERED, *(f"{name}_overridden" for name in RENDERED)]  # the second ones with every override beside
Manifests = list[dict[str, Any]]


def render(name: str, /, **changes: Any) -> Manifests:
    spec, renderer = RENDERED[name.removesuffix("_overridden")]
    given = read_mapping(GOLDEN / "specs" / f"{spec}.yaml", (), "spec")
    if name.endswith("_overridden"):
        given |= read_mapping(GOLDEN / "specs" / f"{spec}_overridden.yaml", (), "spec")
    return renderer({**given, **changes})


def check_golden(name: str, text: str) -> None:
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs; if that is meant, run again with UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", GOLDENS)
def test_rendered_manifests_equal_the_golden_files(name: str) -> None:
    check_golden(name, to_yaml(render(name)))


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_node_of_several_gpus_equals_the_golden_file(kind: str) -> None:
    manifests = render_job(kind, read_mapping(GOLDEN / "specs" / "learner-one-node.yaml", (), "spec"), "spec")
    assert [fault for manifest in manifests for fault in unknown_fields(manifest)] == []
    check_golden(f"{kind}-one-node", to_yaml(manifests))


@pytest.mark.parametrize("name", GOLDENS)
def test_the_sdk_models_know_every_field(name: str) -> None:
    assert [fault for manifest in render(name) for fault in unknown_fields(manifest)] == []


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(part)


# Any key is right in these.
FREE = ("labels", "annotations", "nodeSelector", "selector", "requests", "limits", "pytorchReplicaSpecs", "matchLabels")


@pytest.mark.parametrize("name", GOLDENS)
def test_a_typo_in_any_field_is_found(name: str) -> None:
    """Each key of each mapping is misspelt once."""
    missed, checked = [], 0
    for manifest in render(name):
        for number, place in enumerate(mappings(manifest)):
            if any(parent.get(key) is place for parent in mappings(manifest) for key in FREE):
                continue
            for key in set(place) - {"kind", "apiVersion"}:
                broken = copy.deepcopy(manifest)
                at = next(itertools.islice(mappings(broken), number, None))
                at[key + "s"] = at.pop(key)
                checked += 1
                if not unknown_fields(broken):
                    missed.append(f"{manifest['kind']}: {key}")
    assert missed == []
    assert checked > 60


def test_a_value_of_another_shape_is_found() -> None:
    for path, value in {"spec.nprocPerNode": 8, "spec.runPolicy": [], "spec.runPolicy.backoffLimit": "0"}.items():
        broken = job("pytorchjob")
        *parents, last = path.split(".")
        place = functools.reduce(lambda at, key: at[key], parents, broken)
        place[last] = value
        assert unknown_fields(broken), path


def pod_specs(name: str, **changes: Any) -> Manifests:
    """Pod-like parts: what has containers. A TrainJob's are complete only together with its runtime's."""
    return [place for manifest in render(name, **changes) for place in mappings(manifest) if "containers" in place]


@pytest.mark.parametrize("name", RENDERED)
def test_k39_every_pod_meets_the_restricted_level(name: str) -> None:
    pods = pod_specs(name)
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
        assert all(set(volume) == {"name", "emptyDir"} for volume in pod.get("volumes", []))


@pytest.mark.parametrize("name", RENDERED)
def test_k35_k40_no_pod_gets_a_token_or_service_links(name: str) -> None:
    pods = [pod for pod in pod_specs(name) if name != "trainjob" or "restartPolicy" in pod]
    assert pods
    assert all(pod["enableServiceLinks"] is False and pod["automountServiceAccountToken"] is False for pod in pods)


@pytest.mark.parametrize("name", RENDERED)
def test_no_secret_is_contained_only_named(name: str) -> None:
    secrets = [p for manifest in render(name) for p in mappings(manifest) if re.search("AWS|RELEASE_KEY", str(p.get("name")))]
    assert secrets or name == "predictor"  # KServe reads its Secret by an annotation
    for place in secrets:
        assert set(place) == {"name", "valueFrom"}
        assert set(place["valueFrom"]) == {"secretKeyRef"}


def job(name: str, **changes: Any) -> dict[str, Any]:
    return next(manifest for manifest in render(name, **changes) if manifest["kind"] in ("PyTorchJob", "TrainJob"))


def test_k12_k13_k14_k18_the_pytorchjob_says_what_the_operator_would_else_guess() -> None:
    spec = job("pytorchjob")["spec"]
    assert spec["nprocPerNode"] == "8"
    assert {role: part["replicas"] for role, part in spec["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 1}
    assert {part["restartPolicy"] for part in spec["pytorchReplicaSpecs"].values()} == {"Never"}
    assert {c["name"] for pod in pod_specs("pytorchjob") for c in pod["containers"]} == {"pytorch"}
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    assert spec["runPolicy"]["ttlSecondsAfterFinished"] > 0
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 3600 + 172800
    assert spec["runPolicy"]["backoffLimit"] == 0


def test_one_node_has_a_master_alone() -> None:
    assert set(job("pytorchjob", nodes=1)["spec"]["pytorchReplicaSpecs"]) == {"Master"}


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_k15_shared_memory_is_a_bounded_volume_in_memory(name: str) -> None:
    pod = pod_specs(name)[-1]
    assert {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in pod["volumes"]
    assert {"name": "dshm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_k16_no_sidecar_is_injected(name: str) -> None:
    templates = [place for place in mappings(job(name)) if "containers" in place.get("spec", {})]
    assert templates
    for template in templates:
        for kind in ("labels", "annotations"):
            assert template["metadata"][kind]["sidecar.istio.io/inject"] == "false"


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_k17_the_job_names_its_kueue_queue_and_none_without_one(name: str) -> None:
    labels = job(name)["metadata"]["labels"]
    assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("training", "high")
    assert not any(label.startswith("kueue") for label in job(name, queue=None, priority=None)["metadata"]["labels"])


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_k19_k20_both_kinds_start_the_same_ranks(name: str) -> None:
    containers = [p for p in mappings(job(name)) if "command" in p]
    assert {tuple(p["command"] + p.get("args", [])) for p in containers} == {
        (
            "python",
            "-m",
            "rolecast.launching.ranks",
            "rl",
            "s3://rolecast/runs/decor-7b",
            "--nodes=2",
            "--procs=8",
            "--save-seconds=110",
        )
    }
    assert {"name": "ROLECAST_ZERO_STAGE", "value": "3"} in containers[0]["env"]
    assert "ROLECAST_ZERO_STAGE" not in to_yaml([job(name, zero_stage=None)])  # then the run's config decides


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_k21_what_the_operator_or_the_image_sets_is_not_set_by_us(name: str, stage: str) -> None:
    names = {variable["name"] for place in mappings(job(name, stage=stage)) for variable in place.get("env", [])}
    assert "AWS_ACCESS_KEY_ID" in names
    assert not names & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"}
    assert not any(variable.startswith("PET_") for variable in names)


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_a_job_may_ask_for_less_than_it_takes(name: str) -> None:
    def amounts(**changes: Any) -> set[tuple[str, str, str, str]]:
        found = [p for p in mappings(job(name, **changes)) if "limits" in p]
        return {(p["requests"]["cpu"], p["limits"]["cpu"], p["requests"]["memory"], p["limits"]["memory"]) for p in found}

    assert amounts() == {("96", "96", "800Gi", "800Gi")}
    assert amounts(cpu="2", cpu_request="300m", memory_request="1Gi") == {("300m", "2", "1Gi", "800Gi")}


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_ranks_save_within_the_grace_of_their_pod(name: str) -> None:
    for seconds in (60, 900):
        (arguments,) = {
            tuple(p.get("command", []) + p.get("args", [])) for p in mappings(job(name, grace_seconds=seconds)) if "command" in p
        }
        save = int(arguments[-1].removeprefix("--save-seconds="))
        graces = [
            p["terminationGracePeriodSeconds"] for p in mappings(job(name, grace_seconds=seconds)) if "terminationGracePeriodSeconds" in p
        ]
        assert set(graces) == {seconds}
        assert seconds - 15 < save < seconds


def test_a_containers_end_is_told_by_its_termination_message() -> None:
    for name, kind in (("pytorchjob", "PyTorchJob"), ("trainjob", "TrainingRuntime")):
        (manifest,) = [m for m in render(name) if m["kind"] == kind]
        told = [container for place in mappings(manifest) for container in place.get("containers", [])]
        assert told
        for container in told:
            assert container["terminationMessagePath"] == TERMINATION_LOG
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_only_an_rl_job_has_a_coordinator_service(name: str) -> None:
    (service,) = [manifest for manifest in render(name) if manifest["kind"] == "Service"]
    assert service["metadata"]["name"] == f"{job(name)['metadata']['name']}-coordinator"
    assert job(name)["metadata"]["name"] in service["spec"]["selector"].values()
    assert not [manifest for manifest in render(name, stage="sft") if manifest["kind"] == "Service"]
    for kind, services in (("sft", 0), ("rl", 1)):  # whatever the stage is called
        rendered = render(name, stage="second_round", kind=kind)
        assert len([manifest for manifest in rendered if manifest["kind"] == "Service"]) == services
        assert ("ROLECAST_COORDINATOR_PORT" in to_yaml(rendered)) == bool(services)


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_applying_a_second_run_s_job_leaves_the_first_one_s_service_as_it_is(name: str) -> None:
    """`kubectl apply` replaces what has the same kind and name: of two runs, or two stages of one, nothing has."""
    runs = [{}, {"run": "s3://rolecast/other/decor-7b"}, {"stage": "plans", "kind": "rollout"}]
    applied: dict[tuple[str, str], dict[str, Any]] = {}
    for changes in runs:
        for manifest in render(name, **changes):
            if manifest["kind"] != "TrainingRuntime":  # jobs share it
                assert applied.setdefault((manifest["kind"], manifest["metadata"]["name"]), manifest) is manifest
    services = [manifest for (kind, _), manifest in applied.items() if kind == "Service"]
    jobs = {manifest["metadata"]["name"] for (kind, _), manifest in applied.items() if kind != "Service"}
    assert [len(jobs & set(service["spec"]["selector"].values())) for service in services] == [1, 1, 1]
    assert len({str(service["spec"]["selector"]) for service in services}) == 3


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_a_job_announces_the_address_of_its_own_service_where_the_chart_says(name: str) -> None:
    rendered = render(name, namespace="team")
    (service,) = [manifest for manifest in rendered if manifest["kind"] == "Service"]
    variables = {v["name"]: v for place in mappings(rendered) for v in place.get("env", [])}
    assert variables["ROLECAST_COORDINATOR_URL"]["value"] == f"http://{service['metadata']['name']}.team.svc:8300"
    where = {"name": "rolecast-endpoints", "key": "ROLECAST_COORDINATORS", "optional": True}
    assert variables["ROLECAST_COORDINATORS"]["valueFrom"] == {"configMapKeyRef": where}
    assert "ROLECAST_COORDINATOR" not in to_yaml(render(name, stage="sft"))
    open_port = {"name": "rolecast-endpoints", "key": "ROLECAST_COORDINATOR_PORT", "optional": True}
    assert variables["ROLECAST_COORDINATOR_PORT_LET_THROUGH"]["valueFrom"] == {"configMapKeyRef": open_port}


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_pods_that_may_run_a_coordinator_are_labelled_and_so_is_its_service(name: str) -> None:
    def labelled(**changes: Any) -> int:
        return sum(place.get("labels", {}).get("rolecast.dev/coordinator") == "true" for place in mappings(render(name, **changes)))

    assert labelled() > 0
    assert labelled(stage="sft") == 0
    (service,) = [manifest for manifest in render(name) if manifest["kind"] == "Service"]
    assert service["metadata"]["labels"]["app.kubernetes.io/component"] == "coordinator"


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_a_job_shows_services_the_token_of_a_secret(name: str) -> None:
    def references(**changes: Any) -> list[Any]:
        variables = [v for place in mappings(job(name, **changes)) for v in place.get("env", [])]
        return [v["valueFrom"] for v in variables if v["name"] == "ROLECAST_TOKEN"]

    assert {"secretKeyRef": {"name": "who", "key": "token"}} in references(auth_secret="who")
    assert {"secretKeyRef": {"name": "who", "key": "token"}} in references(stage="sft", auth_secret="who")
    assert not references()


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_a_stage_that_samples_takes_the_releases_key_from_a_secret(name: str) -> None:
    def references(**changes: Any) -> list[Any]:
        variables = [v for place in mappings(job(name, **changes)) for v in place.get("env", [])]
        return [v["valueFrom"] for v in variables if v["name"] == "ROLECAST_RELEASE_KEY"]

    assert {"secretKeyRef": {"name": "rolecast-release", "key": "key"}} in references()
    assert {"secretKeyRef": {"name": "other", "key": "key"}} in references(release_secret="other")
    assert {"secretKeyRef": {"name": "rolecast-release", "key": "key"}} in references(stage="second_round", kind="rl")
    assert not references(stage="sft")
    assert not references(release_secret=None), "with rollouts: local there is nobody to know"


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob"])
def test_a_folder_is_refused_since_pods_do_not_share_it(name: str) -> None:
    with pytest.raises(InputError, match="is a folder, which pods do not share"):
        render(name, run="runs/demo")


@pytest.mark.parametrize(
    "run",
    ["s3://", "s3://bucket", "s3://bucket//x", "s3://bucket/a b", "s3://B_AD/x", "s3://bucket/../x", "gs://bucket/x", "file:///runs/x"],
)
def test_an_address_that_names_no_run_in_a_bucket_is_refused(run: str) -> None:
    with pytest.raises(InputError, match="s3://bucket/prefix/NAME"):
        render("pytorchjob", run=run)


def test_a_cluster_runtime_is_not_rendered() -> None:
    assert [m["kind"] for m in render("trainjob", runtime={"kind": "ClusterTrainingRuntime", "name": "torch"})] == ["TrainJob", "Service"]


SERVICES = ["agent", "predictor"]


@pytest.mark.parametrize("name", SERVICES)
def test_k28_k32_standard_mode_scales_on_the_queue(name: str) -> None:
    (service,) = render(name)
    annotations = service["metadata"]["annotations"]
    assert annotations["serving.kserve.io/deploymentMode"] == "Standard"
    assert annotations["serving.kserve.io/autoscalerClass"] == "keda"
    (metric,) = service["spec"]["predictor"]["autoScaling"]["metrics"]
    assert "waiting" in metric["external"]["metric"]["query"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_ask_for_less_than_it_takes(name: str) -> None:
    def amounts(**changes: Any) -> tuple[str, str, str, str]:
        (service,) = render(name, cpu="2", memory="4Gi", **changes)
        found = service["spec"]["predictor"]["containers"][0]["resources"]
        return found["requests"]["cpu"], found["limits"]["cpu"], found["requests"]["memory"], found["limits"]["memory"]

    assert amounts() == ("2", "2", "4Gi", "4Gi")
    assert amounts(cpu_request="100m", memory_request="1Gi") == ("100m", "2", "1Gi", "4Gi")


@pytest.mark.parametrize("name", SERVICES)
def test_without_scaling_the_number_of_replicas_is_fixed(name: str) -> None:
    (service,) = render(name, scaling=None, replicas=3)
    predictor = service["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)
    assert "autoScaling" not in predictor
    assert service["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "none"


@pytest.mark.parametrize("name", SERVICES)
def test_k30_k31_probes_are_apart_and_a_pod_drains_within_its_grace(name: str) -> None:
    (pod,) = pod_specs(name)
    (container,) = pod["containers"]
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 900
    assert container["readinessProbe"] != container["livenessProbe"]
    assert 0 < container["lifecycle"]["preStop"]["sleep"]["seconds"] < pod["terminationGracePeriodSeconds"]


def test_k29_the_predictors_model_comes_by_uri_with_a_named_secret() -> None:
    (service,) = render("predictor")
    assert service["spec"]["predictor"]["storageUris"] == [{"uri": "s3://rolecast/runs/decor-7b/rl/model", "mountPath": "/mnt/models"}]
    assert service["metadata"]["annotations"]["serving.kserve.io/storageSecretName"] == "rolecast-s3"


@pytest.mark.parametrize("uri", ["s3://rolecast/runs/a/rl/best", "s3://rolecast/models/latest", "s3://rolecast/runs/a", "s3://b/rl/models"])
def test_k33_a_uri_whose_content_may_change_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="may change under a running service"):
        render("predictor", uri=uri)


def test_k33_a_checkpoint_is_accepted() -> None:
    render("predictor", uri="s3://rolecast/runs/a/rl/checkpoints/step-000120")


@pytest.mark.parametrize("key", ["canaryTrafficPercent", "canary_traffic_percent"])
def test_k34_a_traffic_split_is_refused_with_the_way_to_do_it(key: str) -> None:
    with pytest.raises(InputError, match="render a second service with track: canary"):
        render("predictor", **{key: 10})


def test_an_agent_takes_and_shows_the_tokens_of_a_secret() -> None:
    [service] = render("agent", auth_secret="who")
    predictor = service["spec"]["predictor"]
    [container] = predictor["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env["ROLECAST_TOKENS_FILE"] == "/etc/rolecast/auth/tokens"
    assert env["ROLECAST_TOKEN_FILE"] == "/etc/rolecast/auth/token"
    assert {"name": "auth", "mountPath": "/etc/rolecast/auth", "readOnly": True} in container["volumeMounts"]
    [volume] = [volume for volume in predictor["volumes"] if volume["name"] == "auth"]
    assert volume["secret"]["secretName"] == "who"
    assert "auth" not in to_yaml(render("agent"))


@pytest.mark.parametrize("name", SERVICES)
def test_k34_a_canary_is_a_second_service_that_shares_no_pod_with_the_first(name: str) -> None:
    (stable,), (canary,) = render(name), render(name, track="canary")
    assert canary["metadata"]["name"] == stable["metadata"]["name"] + "-canary"
    pods = [m["spec"]["predictor"]["labels"]["app.kubernetes.io/instance"] for m in (stable, canary)]
    assert len(set(pods)) == 2
    assert "canaryTrafficPercent" not in to_yaml([stable, canary])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("predictor", {"gpus": 0}, "needs gpus"),
        ("predictor", {"arguments": ["--api-key=abc"]}, "--api-key is refused"),
        ("predictor", {"uri": "/models/a"}, "uri"),
        ("agent", {"stage": None}, "an agent needs stage: name the one whose team it serves"),
        ("agent", {"stage": "rl_"}, "stage: String should match"),
        ("predictor", {"stage": "rl"}, "stage is for kind agent"),
        ("predictor", {"auth_secret": "who"}, "auth_secret is for kind agent"),
        ("agent", {"max_model_len": 10}, "max_model_len is for kind vllm"),
        ("agent", {"replicas": 2}, "exclude each other"),
        ("agent", {"scaling": {"prometheus": "http://p", "min_replicas": 2, "max_replicas": 2}}, "max_replicas must exceed"),
        ("agent", {"name": "a" * 40}, "KServe adds suffixes"),
        ("agent", {"nam": "x"}, "nam"),
    ],
)
def test_a_service_that_cannot_work_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(name, **changes)
