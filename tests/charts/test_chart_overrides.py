"""Overrides in charts: refused in the words that jobs refuse them with, merged as theirs are, and elastic workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolecast.launching import overrides, volumes
from tests.charts.rendering import CHART, INSTALLS, Helm, Object, of_kind, pods
from tests.refused_overrides import MALFORMED, OURS


def given(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "given.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def rendered(helm: Helm, *values: Path) -> list[Object]:
    result = helm.template(*values)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def rollout(objects: list[Object]) -> Object:
    return next(item for item in of_kind(objects, "Deployment") if item["metadata"]["name"].endswith("-rollout"))


@pytest.mark.parametrize(("block", "message"), OURS)
def test_what_is_ours_is_refused_as_it_is_for_jobs(helm: Helm, tmp_path: Path, block: dict[str, Any], message: str) -> None:
    result = helm.template(*INSTALLS["dev"], given(tmp_path, {"rollout": {"overrides": block}}))
    assert result.returncode != 0
    assert message in result.stderr
    assert "rollout.overrides or global.overrides" in result.stderr


@pytest.mark.parametrize(("block", "key"), MALFORMED)
def test_what_is_malformed_is_refused_by_the_same_model(helm4: Helm, tmp_path: Path, block: dict[str, Any], key: str) -> None:
    result = helm4.template(*INSTALLS["dev"], given(tmp_path, {"global": {"overrides": block}}))
    assert result.returncode != 0
    assert key in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["ROLECAST_WORKDIR", "AWS_ACCESS_KEY_ID", "ROLECAST_RELEASE_KEY"])
def test_a_variable_that_the_chart_sets_is_refused(helm: Helm, tmp_path: Path, name: str) -> None:
    source = {"secretKeyRef": {"name": "other", "key": "key"}}
    result = helm.template(*INSTALLS["dev"], given(tmp_path, {"rollout": {"overrides": {"env": {name: source}}}}))
    assert result.returncode != 0
    assert f"variable {name} is set by Rolecast" in result.stderr


def test_templates_protect_what_the_model_protects() -> None:
    """The lists are said twice, since Helm runs no Python."""
    template = (CHART / "charts" / "common" / "templates" / "_overrides.tpl").read_text()
    for name in (*overrides.OWN_ANNOTATIONS, *volumes.OWN_VOLUMES, *volumes.OWN_FOLDERS):
        assert f'"{name}"' in template, name
    assert f'"{overrides.OWN_VARIABLES}"' in template
    assert f'"{overrides.SECRET_VARIABLE}"' in template


def test_a_part_goes_before_all_and_null_takes_away(helm: Helm, tmp_path: Path) -> None:
    values = {
        "global": {
            "overrides": {
                "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": 1000740000},
                "labels": {"team": "search", "tier": "all"},
                "env": {"NCCL_DEBUG": "INFO", "PLAIN": {"secretKeyRef": {"name": "nn", "key": "kk"}}},
                "tolerations": [{"key": "all", "operator": "Exists"}],
                "safeToEvict": False,
            }
        },
        "rollout": {
            "env": {"LEVEL": "debug"},
            "tolerations": [{"key": "own", "operator": "Exists"}],
            "overrides": {
                "podSecurityContext": {"runAsUser": 4000, "fsGroup": None},
                "labels": {"tier": "rollout"},
                "env": {"NCCL_DEBUG": "WARN"},
                "topologySpreadConstraints": None,
                "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                "extraResources": {"rdma/hca": 2},
            },
        },
    }
    objects = rendered(helm, *INSTALLS["dev"], given(tmp_path, values))
    template = rollout(objects)["spec"]["template"]
    spec, [container] = template["spec"], template["spec"]["containers"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 4000, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert (template["metadata"]["labels"]["team"], template["metadata"]["labels"]["tier"]) == ("search", "rollout")
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "rollout"
    assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    env = {variable["name"]: variable for variable in container["env"]}
    assert (env["NCCL_DEBUG"]["value"], env["LEVEL"]["value"]) == ("WARN", "debug")
    assert env["PLAIN"]["valueFrom"] == {"secretKeyRef": {"name": "nn", "key": "kk"}}
    assert spec["tolerations"] == [{"key": "own", "operator": "Exists"}, {"key": "all", "operator": "Exists"}]
    assert not spec["topologySpreadConstraints"]
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]
    assert {"tmp", "work", "cache"} <= {volume["name"] for volume in spec["volumes"]}
    assert (container["resources"]["requests"]["rdma/hca"], container["resources"]["limits"]["rdma/hca"]) == (2, 2)
    judge = next(pod for pod in pods(of_kind(objects, "Deployment")) if pod.owner.endswith("-judge"))
    assert judge.spec["securityContext"]["fsGroup"] == 1000740000  # a whole number, as OpenShift's are
    assert "runAsUser" not in judge.spec["securityContext"]
    assert judge.spec["topologySpreadConstraints"]


def test_labels_of_overrides_do_not_select(helm4: Helm, tmp_path: Path) -> None:
    objects = rendered(helm4, *INSTALLS["dev"], given(tmp_path, {"global": {"overrides": {"labels": {"team": "search"}}}}))
    assert "search" not in json.dumps([item["spec"]["selector"] for item in objects if item["kind"] in ("Deployment", "Service")])


def test_elastic_workers_follow_the_groups_and_the_deployment_says_no_number(helm: Helm) -> None:
    objects = helm.rendered("prod-gpu-cluster")
    [scaled] = of_kind(objects, "ScaledObject")
    deployment = rollout(objects)
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    [trigger] = scaled["spec"]["triggers"]
    assert "rolecast_coordinator_groups_waiting" in trigger["metadata"]["query"]
    assert "rolecast_coordinator_leases_held" in trigger["metadata"]["query"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes texts alone"
    assert of_kind(helm.rendered("prod"), "ScaledObject") == []
    assert rollout(helm.rendered("prod"))["spec"]["replicas"] == 8


def test_workers_on_gpus_are_recreated_and_queue(helm4: Helm) -> None:
    for install in ("prod", "prod-gpu-cluster"):
        assert rollout(helm4.rendered(install))["spec"]["strategy"] == {"type": "Recreate"}
    assert rollout(helm4.rendered("dev"))["spec"]["strategy"]["type"] == "RollingUpdate"
    elastic = rollout(helm4.rendered("prod-gpu-cluster"))
    labels = elastic["metadata"]["labels"]
    assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("rolecast", "rolecast-rollout")
    # Kueue's webhook gives a Deployment's pods the queue and not the class, and each of them is a workload of its own.
    assert elastic["spec"]["template"]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "rolecast-rollout"
    assert "kueue" not in json.dumps(rollout(helm4.rendered("prod")))


def test_gpus_may_be_others(helm: Helm, tmp_path: Path) -> None:
    part = {"device": "cuda", "overrides": {"gpuResource": "amd.com/gpu"}}
    values = given(tmp_path, {"rollout": part})
    assert 'asks for no GPU: set rollout.resources.limits."amd.com/gpu"' in helm.template(*INSTALLS["dev"], values).stderr
    values = given(tmp_path, {"rollout": part | {"resources": {"limits": {"amd.com/gpu": 1}}}})
    deployment = rollout(rendered(helm, *INSTALLS["dev"], values))
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] == 1
    assert "nvidia" not in json.dumps(deployment)


def test_an_agent_scales_and_is_not_drained_at_once(helm4: Helm) -> None:
    objects = helm4.rendered("prod-gpu-cluster")
    agents = {item["kind"]: item for item in objects if item["metadata"]["name"].endswith("-agent")}
    assert {"Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget"} <= set(agents)
    assert "replicas" not in agents["Deployment"]["spec"]
    kinds = {item["kind"] for item in helm4.rendered("ci") if item["metadata"]["name"].endswith("-agent")}
    assert not {"HorizontalPodAutoscaler", "PodDisruptionBudget"} & kinds


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("rollout.scaling.enabled=true", "prometheus"),
        (
            "rollout.scaling.enabled=true,rollout.scaling.prometheus=http://p,rollout.scaling.minReplicas=9",
            "maxReplicas 8 is below minReplicas 9",
        ),
        ("rollout.scaling.enabled=true,rollout.scaling.prometheus=p:9090", "prometheus"),
        ("global.s3.credentials=guess", "credentials"),
        ("global.s3.token.roleArn=role", "roleArn"),
        ("global.s3.token.audience=", "audience"),
        ("global.s3.caConfigMap=Not/A/Name", "caConfigMap"),
        ("global.serviceAccount.annotations.a=1", "annotations"),
        ("rollout.queue=Not A Queue", "queue"),
        ("rollout.resources.limits.gpu=1", "gpu"),
        ("agent.autoscaling.cpu=0", "cpu"),
        ("global.networkPolicy.pipelines.from[0].namespace=x", "namespace"),
    ],
)
def test_bad_value_is_refused(helm: Helm, change: str, key: str) -> None:
    result = helm.template(*INSTALLS["dev"], sets=(change,))
    assert result.returncode != 0
    assert key in result.stderr
