"""manifests/: each folder builds, fits Kubernetes' schema, says what it is for, and carries no secret."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from rolecast_pipelines.parameters import PLACE

from rolecast.cli.main import app
from rolecast.launching.render import render_job
from tests.charts import policies
from tests.charts.rendering import CHART, ROOT, Helm, of_kind, pods
from tests.charts.traffic import End, arrives, leaves

MANIFESTS = ROOT / "manifests"
FOREIGN = {"kueue.x-k8s.io/v1beta2"}
FOLDERS = ["cluster", "cluster/kueue", "overlays/dev", "overlays/prod"]


def build(tools: Path, folder: str) -> list[dict[str, Any]]:
    result = subprocess.run([tools / "kubectl", "kustomize", MANIFESTS / folder], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return [document for document in yaml.safe_load_all(result.stdout) if document]


@pytest.mark.parametrize("folder", FOLDERS)
def test_builds_and_fits_kubernetes(tools: Path, folder: str) -> None:
    objects = build(tools, folder)
    assert objects
    for item in objects:
        if item["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(item, "1.36", strict=True)


def test_every_folder_is_built() -> None:
    folders = {str(path.parent.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("kustomization.yaml")}
    assert folders == {*FOLDERS, "base"}


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_says_what_it_is_for(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_namespace_is_restricted(tools: Path) -> None:
    labels = build(tools, "cluster")[0]["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"restricted"}


def test_queue_refers_to_flavors_that_are_there(tools: Path) -> None:
    objects = build(tools, "cluster/kueue")
    flavors = {item["metadata"]["name"] for item in of_kind(objects, "ResourceFlavor")}
    (queue,) = of_kind(objects, "ClusterQueue")
    for group in queue["spec"]["resourceGroups"]:
        for flavor in group["flavors"]:
            assert flavor["name"] in flavors
            assert [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]
    (local,) = of_kind(objects, "LocalQueue")
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]


def test_the_queue_counts_all_that_jobs_and_workers_request(tools: Path, helm4: Helm) -> None:
    """Kueue never admits a workload that requests what its queue does not cover."""
    (queue,) = of_kind(build(tools, "cluster/kueue"), "ClusterQueue")
    covered = {name for group in queue["spec"]["resourceGroups"] for name in group["coveredResources"]}
    job = {"run": "s3://b/runs/r", "stage": "rl", "image": "x", "gpus_per_node": 8, "procs_per_node": 8, "queue": "rolecast"}
    workers = [
        item
        for item in of_kind(helm4.rendered("prod", "rollout.queue=rolecast"), "Deployment")
        if item["metadata"]["name"].endswith("-rollout")
    ]
    found = pods([*render_job("pytorchjob", job, "job"), *workers])
    requested = {
        name for pod in found for container in pod.containers for kind in ("requests", "limits") for name in container["resources"][kind]
    }
    assert {"ephemeral-storage", "nvidia.com/gpu"} <= requested <= covered


def test_production_may_hold_the_gpus_that_it_asks_for(tools: Path, helm4: Helm) -> None:
    (quota,) = of_kind(build(tools, "overlays/prod"), "ResourceQuota")
    workers = next(item for item in of_kind(helm4.rendered("prod"), "Deployment") if item["metadata"]["name"].endswith("-rollout"))
    (queue,) = of_kind(build(tools, "cluster/kueue"), "ClusterQueue")
    gpus = [
        r["nominalQuota"]
        for g in queue["spec"]["resourceGroups"]
        for f in g["flavors"]
        for r in f["resources"]
        if r["name"] == "nvidia.com/gpu"
    ]
    assert int(quota["spec"]["hard"]["requests.nvidia.com/gpu"]) >= workers["spec"]["replicas"] + sum(gpus)


def test_objects_of_a_release_are_not_here(tools: Path) -> None:
    """K50: what charts own and what an administrator sets up first do not overlap."""
    mine = {item["kind"] for folder in FOLDERS for item in build(tools, folder)}
    assert mine == {
        "Namespace", "PriorityClass", "ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass", "LimitRange", "ResourceQuota",
    }  # fmt: skip


def test_training_goes_before_rollout(tools: Path, helm4: Helm) -> None:
    """For the scheduler and for Kueue; the names are those that charts and specs give."""
    for folder, kind in (("cluster", "PriorityClass"), ("cluster/kueue", "WorkloadPriorityClass")):
        values = {item["metadata"]["name"]: item["value"] for item in of_kind(build(tools, folder), kind)}
        assert values["rolecast-training"] > values["rolecast-rollout"] > 0
        if kind == "PriorityClass":
            named = {pod.spec.get("priorityClassName") for pod in pods(of_kind(helm4.rendered("prod"), "Deployment"))}
            assert named == {"rolecast-serving", "rolecast-rollout"}
            assert values["rolecast-serving"] == max(values.values())
    (queue,) = of_kind(build(tools, "cluster/kueue"), "ClusterQueue")
    assert queue["spec"]["preemption"] == {"withinClusterQueue": "LowerPriority"}
    workers = next(
        item for item in of_kind(helm4.rendered("prod-gpu-cluster"), "Deployment") if item["metadata"]["name"].endswith("-rollout")
    )
    assert (
        workers["spec"]["template"]["spec"]["priorityClassName"]
        == workers["metadata"]["labels"]["kueue.x-k8s.io/priority-class"]
        == "rolecast-rollout"
    )


def init_container(**values: str) -> dict[str, Any]:
    """As the operator fills the template in."""
    template = yaml.safe_load((MANIFESTS / "examples" / "training-operator-init-container.yaml").read_text())["data"]["initContainer.yaml"]
    known = {"InitContainerImage": "busybox", "MasterAddr": "a-master-0", "MaxTries": "2", **values}
    (container,) = yaml.safe_load(re.sub(r"\{\{\.(\w+)\}\}", lambda found: known[found[1]], template))
    return dict(container)


# What busybox 1.28 and 1.31 say of a headless Service. A newer one does not add the search domains, and may exit with 1 for want of IPv6.
OLD = """[ "$1" = a-master-0.team.svc.cluster.local ] || { echo "nslookup: can't resolve '$1'" >&2; exit 1; }
echo "Server:    10.96.0.10"; echo "Address 1: 10.96.0.10"; echo; echo "Name:      $1"; echo "Address 1: 10.1.2.3"
"""
NEW = """echo "Server:         10.96.0.10"; echo "Address:        10.96.0.10:53"; echo
[ "$1" = a-master-0.team.svc.cluster.local ] || { echo "** server can't find $1: NXDOMAIN"; exit 1; }
echo "Name:   $1"; echo "Address: 10.1.2.3"; echo; echo "*** Can't find $1: No answer"; exit 1
"""
ABSENT = """echo "Server:         10.96.0.10"; echo "Address:        10.96.0.10:53"; echo; echo "** server can't find $1: NXDOMAIN"; exit 1
"""


@pytest.mark.parametrize(("nslookup", "code"), [(OLD, 0), (NEW, 0), (ABSENT, 1)], ids=["old", "new", "no master"])
def test_the_init_container_finds_the_master_whatever_its_busybox_is(tmp_path: Path, nslookup: str, code: int) -> None:
    for name, script in (("nslookup", nslookup), ("sleep", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 10.96.0.10\nsearch team.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
    shell, flag, script = init_container()["command"]
    done = subprocess.run(
        [shell, flag, script.replace("/etc/resolv.conf", str(resolv))],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
    )
    assert done.returncode == code, done.stderr


def test_init_container_of_the_training_operator_is_restricted_and_bounded() -> None:
    container = init_container()
    assert set(container["resources"]) == {"requests", "limits"}
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["runAsNonRoot"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


JOBS = [path.stem for path in sorted((MANIFESTS / "examples").glob("*.yaml")) if "\nkind: Job\n" in path.read_text()]


def job(name: str) -> dict[str, Any]:
    (item,) = yaml.safe_load_all((MANIFESTS / "examples" / f"{name}.yaml").read_text())
    return dict(item)


def test_jobs_of_examples_are_found() -> None:
    assert {"create-run", "evaluate-run"} <= set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_shows_services_the_token_that_the_docs_make(name: str) -> None:
    """Of the Secret that pipelines' steps take it from, and started without where there is none."""
    names = {parameter.name: parameter.default for parameter in PLACE}
    shown = {"secretKeyRef": {"name": names["auth_secret"], "key": "token", "optional": True}}
    assert f"create secret generic {names['auth_secret']} --from-file=token " in (MANIFESTS / "examples" / "secrets.md").read_text()
    for container in pods([job(name)])[0].containers:
        assert {"name": "ROLECAST_TOKEN", "valueFrom": shown} in container.get("env", [])
        speaks = container["args"][0] == "eval"  # roles do, through endpoints
        assert ({"secretRef": {"name": names["externals_secret"], "optional": True}} in container["envFrom"]) is speaks


@pytest.mark.parametrize("name", JOBS)
def test_a_step_by_hand_is_admitted_and_reaches_what_it_asks(helm4: Helm, name: str) -> None:
    """Its labels are those that the chart's policies know, its ConfigMap and account the chart's, its command one that there is."""
    item = job(name)
    kubernetes_validate.validate(item, "1.36", strict=True)
    objects = helm4.rendered("dev")
    for rule in (policies.service_links_are_off, policies.pods_are_restricted, policies.tokens_are_off, policies.disk_is_counted):
        assert list(rule([item])) == []
    (pod,) = pods([item])
    (container,) = pod.containers
    mine = End(pod.labels)
    assert leaves(objects, mine, End({}, "minio"), 9000)
    assert leaves(objects, mine, End({"k8s-app": "kube-dns"}, "kube-system"), 53, "UDP")
    for deployment in of_kind(objects, "Deployment"):
        other = End(deployment["spec"]["template"]["metadata"]["labels"])
        if other.labels["app.kubernetes.io/component"] in ("retriever", "judge"):
            assert leaves(objects, mine, other, 8080)
            assert arrives(objects, mine, other, 8080)
    assert pod.spec["serviceAccountName"] in {account["metadata"]["name"] for account in of_kind(objects, "ServiceAccount")}
    assert {"configMapRef": {"name": of_kind(objects, "ConfigMap")[0]["metadata"]["name"]}} in container["envFrom"]
    command = typer.main.get_command(app)
    words = [str(word) for word in container["args"]]
    while isinstance(command, typer.core.TyperGroup):
        command = command.commands[words.pop(0)]
    command.make_context(
        name, [word.replace("/etc/rolecast/run/config.yaml", str(ROOT / "configs" / "demo_cluster.yaml")) for word in words]
    )


def test_no_secret_is_written_down() -> None:
    for path in [*MANIFESTS.rglob("*"), *CHART.rglob("*")]:
        if path.suffix in (".yaml", ".md", ".json"):
            text = path.read_text()
            assert "kind: Secret" not in text, path
            assert not re.search(r"(AWS_SECRET_ACCESS_KEY|OPENAI_API_KEY|password)\s*[=:]\s*[^\s,;`|]", text), path


def test_admission_of_launchers_jobs_fits_kubernetes_and_takes_what_rolecast_renders() -> None:
    """The Secrets and accounts of rendered jobs are on its list, and each kind of job that a launcher may create has its policy."""
    objects = [item for item in yaml.safe_load_all((MANIFESTS / "examples" / "admission-launchers.yaml").read_text()) if item]
    for item in objects:
        kubernetes_validate.validate(item, "1.36", strict=True)
    policies = of_kind(objects, "ValidatingAdmissionPolicy")
    kinds = {
        resource for policy in policies for rule in policy["spec"]["matchConstraints"]["resourceRules"] for resource in rule["resources"]
    }
    assert kinds == {"pytorchjobs", "trainjobs", "trainingruntimes"}
    assert {binding["spec"]["policyName"] for binding in of_kind(objects, "ValidatingAdmissionPolicyBinding")} == {
        policy["metadata"]["name"] for policy in policies
    }
    (listed,) = of_kind(objects, "ConfigMap")
    values = {"run": "s3://rolecast/runs/x", "stage": "rl", "image": "x", "auth_secret": "rolecast-auth"}
    for kind in ("pytorchjob", "trainjob"):
        text = json.dumps(render_job(kind, {**values, "externals_secret": "rolecast-externals", "externals_keys": ["BIG_KEY"]}, "spec"))
        named = set(re.findall(r'"secretKeyRef": \{"name": "([^"]+)"', text))
        assert named == set(listed["data"]["secrets"].split())
        assert set(re.findall(r'"serviceAccountName": "([^"]+)"', text)) == set(listed["data"]["accounts"].split())
