"""The charts lint, render the same under Helm 3 and 4, and every object fits Kubernetes' own schema."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import typer.main
import yaml

from rolecast.cli.main import app
from rolecast.launching.render import render_job
from tests.charts.rendering import CHART, INSTALLS, NAMESPACE, RELEASE, ROOT, Helm, Object, of_kind, pods, title

KUBERNETES = "1.36"
FOREIGN = {"monitoring.coreos.com/v1", "keda.sh/v1alpha1"}  # custom resources; everything else must be Kubernetes' own
PARTS = ("retriever", "judge", "rollout", "agent")


def test_lint(helm: Helm, install: str) -> None:
    result = helm.lint(*INSTALLS[install])
    assert result.returncode == 0, result.stdout
    assert "[WARNING]" not in result.stdout


def test_helm_3_and_4_render_the_same(helm3: Helm, helm4: Helm, install: str) -> None:
    three, four = ({title(item): item for item in helm.rendered(install)} for helm in (helm3, helm4))
    assert len(four) == len(helm4.rendered(install)), "two objects of one kind and name"
    assert three == four


def test_rendered_twice_it_is_the_same_text(helm: Helm, install: str) -> None:
    """Or every `helm diff`, and every GitOps controller, would see a change where nobody made one."""
    first, second = (helm.template(*INSTALLS[install]).stdout for _ in range(2))
    assert first
    assert first == second


def test_objects_fit_kubernetes(helm4: Helm, install: str) -> None:
    for item in helm4.rendered(install):
        if item["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)


def test_misspelt_field_does_not_fit() -> None:
    """The check above is strict: it is worth nothing otherwise."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": [{"name": "x", "imagePullPolice": "Always"}]},
    }
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_labels_and_names(helm4: Helm, install: str) -> None:
    fixed = re.compile(r"^rolecast-(endpoints(-b)?|learner|launcher)$")
    for item in helm4.rendered(install):
        name, labels = item["metadata"]["name"], item["metadata"]["labels"]
        assert fixed.match(name) or name == RELEASE or name.startswith(f"{RELEASE}-"), name
        assert labels["app.kubernetes.io/part-of"] == labels["app.kubernetes.io/name"] == "rolecast"
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_services_find_their_pods(helm4: Helm, install: str) -> None:
    objects = helm4.rendered(install)
    running = [(pod, item) for item in of_kind(objects, "Deployment") for pod in pods([item])]
    for service in of_kind(objects, "Service"):
        found = [item for pod, item in running if service["spec"]["selector"].items() <= pod.labels.items()]
        assert [title(item) for item in found] == [f"Deployment {service['metadata']['name']}"]
    for item in of_kind(objects, "Deployment"):
        assert item["spec"]["selector"]["matchLabels"].items() <= item["spec"]["template"]["metadata"]["labels"].items()


def test_endpoints_name_services_that_are_there(helm4: Helm) -> None:
    objects = helm4.rendered("dev")
    data = next(item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "rolecast-endpoints")
    assert data == {
        "ROLECAST_RETRIEVER_URL": f"http://{RELEASE}-retriever.{NAMESPACE}.svc:8080",
        "ROLECAST_JUDGE_URL": f"http://{RELEASE}-judge.{NAMESPACE}.svc:8080",
        "ROLECAST_COORDINATOR_PORT": "8300",
        "ROLECAST_COORDINATORS": "s3://rolecast/dev/coordinators",
        "ROLECAST_STORE": "s3://rolecast/dev",
        "ROLECAST_S3_ENDPOINT": "http://minio.minio.svc:9000",
        "ROLECAST_S3_REGION": "us-east-1",
    }
    services = {item["metadata"]["name"] for item in of_kind(objects, "Service")}
    assert {f"{RELEASE}-retriever", f"{RELEASE}-judge"} <= services


def test_endpoint_that_is_nowhere_is_left_out(helm4: Helm) -> None:
    objects = helm4.rendered("dev", "retriever.enabled=false", "rollout.enabled=false", "global.endpoints.retriever=none")
    data = next(item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "rolecast-endpoints")
    assert "ROLECAST_RETRIEVER_URL" not in data
    assert "ROLECAST_JUDGE_URL" in data


def test_images(helm4: Helm) -> None:
    def images(install: str, *sets: str) -> dict[str, str]:
        found = pods(of_kind(helm4.rendered(install, *sets), "Deployment"))
        return {pod.containers[0]["name"]: pod.containers[0]["image"] for pod in found}

    digest = "sha256:" + "a" * 64
    assert images("dev") == {part: f"localhost/rolecast-{part}:dev" for part in PARTS[:3]}
    prod = images("prod", f"judge.image.digest={digest}")
    assert prod["rollout"] == "registry.example.com/rolecast/rolecast-rollout:0.1.0-cuda"
    assert prod["retriever"] == "registry.example.com/rolecast/rolecast-retriever:0.1.0"
    assert prod["judge"] == f"registry.example.com/rolecast/rolecast-judge@{digest}"


@pytest.mark.parametrize("part", PARTS)
def test_arguments_and_variables_are_the_commands(helm4: Helm, part: str) -> None:
    """Each flag that a container gives is one of the command's, and each of our variables one of its settings."""
    (pod,) = (pod for pod in pods(of_kind(helm4.rendered("ci"), "Deployment")) if pod.owner.endswith(f"-{part}"))
    arguments = list(pod.containers[0]["args"])
    command: Any = typer.main.get_command(app)
    while arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments.pop(0)]
    command.make_parser(click.Context(command)).parse_args(list(arguments))  # refuses an unknown flag
    settings = {parameter.name for parameter in command.params}
    own = {variable["name"] for variable in pod.containers[0]["env"] if variable["name"].startswith(f"ROLECAST_{part.upper()}_")}
    assert {name.removeprefix("ROLECAST_").lower() for name in own} <= settings


def test_dev_leaves_room_for_a_training_job(helm4: Helm) -> None:
    """On 4 CPUs and 8 GiB, with the agent too, and half of the CPUs for the job and the operators."""
    objects = helm4.rendered("dev", "agent.enabled=true", "agent.run=s3://rolecast/dev/runs/demo")
    requests = [c["resources"]["requests"] for pod in pods(of_kind(objects, "Deployment")) for c in pod.containers]
    assert len(requests) == 4
    assert sum(millicores(request["cpu"]) for request in requests) <= 1000
    assert sum(mebibytes(request["memory"]) for request in requests) <= 2560
    assert not any("nvidia.com/gpu" in json.dumps(item) for item in objects)
    assert {c["imagePullPolicy"] for pod in pods(objects) for c in pod.containers} == {"IfNotPresent"}


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def mebibytes(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_agent_is_kserves_in_production(helm4: Helm) -> None:
    agent = [title(item) for item in helm4.rendered("prod") if item["metadata"]["labels"].get("app.kubernetes.io/component") == "agent"]
    assert sorted(agent) == [
        f"NetworkPolicy {RELEASE}-agent", f"NetworkPolicy {RELEASE}-predictor", f"PodMonitor {RELEASE}-agent", f"ServiceAccount {RELEASE}-agent",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["agent", "predictor"])
def test_pods_of_kserve_are_scraped_where_they_count_what_prometheus_has(helm4: Helm, name: str) -> None:
    """Whatever an InferenceService is called: by labels and port that its pods have, and by nobody else."""
    (monitor,) = of_kind(helm4.rendered("prod"), "PodMonitor")
    service = yaml.safe_load((ROOT / "tests" / "golden" / f"{name}.yaml").read_text())
    labels = service["spec"]["predictor"]["labels"]
    selector, (endpoint,) = monitor["spec"]["selector"], monitor["spec"]["podMetricsEndpoints"]
    assert selected(selector, labels)
    assert endpoint["port"] in {port["name"] for port in service["spec"]["predictor"]["containers"][0]["ports"]}
    assert labels["app.kubernetes.io/instance"] == service["metadata"]["name"]  # what `service` is
    assert not [pod.owner for pod in pods(helm4.rendered("prod")) if selected(selector, pod.labels)]
    assert not of_kind(helm4.rendered("prod", "global.monitoring.serviceMonitor=false"), "PodMonitor")
    assert not of_kind(helm4.rendered("prod-gpu-cluster"), "PodMonitor")  # the agent's own Deployment has a Service


def selected(selector: Object, labels: dict[str, str]) -> bool:
    (among,) = selector["matchExpressions"]
    return selector["matchLabels"].items() <= labels.items() and labels.get(among["key"]) in among["values"]


def test_learner_has_no_pods(helm4: Helm) -> None:
    learner = [item for item in helm4.rendered("ci") if item["metadata"]["labels"].get("app.kubernetes.io/component") == "learner"]
    assert pods(learner) == []
    assert {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "ServiceMonitor"} == {item["kind"] for item in learner}


def test_the_coordinators_of_all_runs_are_scraped(helm4: Helm) -> None:
    """By labels that their Services have, whatever they are called."""
    (monitor,) = [item for item in of_kind(helm4.rendered("ci"), "ServiceMonitor") if item["metadata"]["name"].endswith("-coordinators")]
    for kind in ("pytorchjob", "trainjob"):
        (service,) = [
            item
            for item in render_job(kind, {"run": "s3://rolecast/ci/runs/x", "stage": "rl", "image": "x", "namespace": NAMESPACE}, "spec")
            if item["kind"] == "Service"
        ]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert set(monitor["spec"]["targetLabels"]) <= set(service["metadata"]["labels"])
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    others = of_kind(helm4.rendered("ci"), "Service")
    assert not [item for item in others if monitor["spec"]["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()]


@pytest.mark.parametrize("part", ["retriever", "judge", "rollout", "agent"])
@pytest.mark.parametrize("grace", [30, 60, 600])
def test_a_service_s_drain_follows_from_its_grace(helm4: Helm, part: str, grace: int) -> None:
    objects = helm4.rendered("dev", "agent.enabled=true", "agent.run=s3://rolecast/dev/runs/a", f"{part}.terminationGraceSeconds={grace}")
    (pod,) = [pod for pod in pods(of_kind(objects, "Deployment")) if pod.owner.endswith(f"-{part}")]
    given = {variable["name"]: variable.get("value") for variable in pod.containers[0]["env"]}
    assert pod.spec["terminationGracePeriodSeconds"] == grace
    assert given["ROLECAST_DRAIN_SECONDS"] == str(grace - 15)


def test_launcher_may_what_launching_takes(helm4: Helm) -> None:
    role = next(item for item in of_kind(helm4.rendered("dev"), "Role") if item["metadata"]["name"] == "rolecast-launcher")
    may = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    jobs = [("kubeflow.org", "pytorchjobs"), ("trainer.kubeflow.org", "trainjobs")]
    assert {(*job, verb) for job in jobs for verb in ("create", "list", "watch", "patch", "delete")} <= may
    assert {("", "services", "create"), ("", "pods", "list"), ("", "pods/log", "get"), ("", "events", "list")} <= may
    assert ("argoproj.io", "workflows", "get") in may
    assert not any("*" in permission for permission in may)
    assert not any(resource in ("secrets", "configmaps") for _, resource, _ in may), "only with kubeflowPipelines, and by name"


def test_every_service_has_a_helm_test(helm4: Helm) -> None:
    objects = helm4.rendered("ci")
    tests = [item["metadata"]["name"] for item in objects if item["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    assert sorted(tests) == sorted(f"{item['metadata']['name']}-test" for item in of_kind(objects, "Service"))


def test_scripts_of_helm_tests_compile(helm4: Helm) -> None:
    for item in of_kind(helm4.rendered("ci"), "Pod"):
        script, url = item["spec"]["containers"][0]["args"]
        compile(script, title(item), "exec")
        assert url.startswith(f"http://{RELEASE}-")


def test_upgrade_keeps_selectors(helm4: Helm, tmp_path: Path) -> None:
    """Kubernetes refuses a Deployment whose selector changes, so a new version of everything must not change one."""
    copied = Path(shutil.copytree(CHART, tmp_path / "rolecast"))
    for chart in copied.rglob("Chart.yaml"):
        chart.write_text(chart.read_text().replace("0.1.0", "9.9.9"))
    result = Helm(helm4.binary, copied).template(*INSTALLS["ci"], sets=("global.image.tag=9.9.9",))
    assert result.returncode == 0, result.stderr

    def selectors(objects: list[Object]) -> dict[str, Any]:
        return {title(item): fixed(item) for item in objects if fixed(item)}

    newer = [document for document in yaml.safe_load_all(result.stdout) if document]
    assert any(item["metadata"]["labels"]["app.kubernetes.io/version"] == "9.9.9" for item in newer)
    assert selectors(newer) == selectors(helm4.rendered("ci"))


def fixed(item: Object) -> dict[str, Any]:
    """What Kubernetes lets nobody change in an object that is there."""
    spec = item.get("spec", {})
    return {
        "Deployment": lambda: {"selector": spec["selector"]},
        "Service": lambda: {"clusterIP": spec.get("clusterIP"), "selector": spec["selector"]},
        "RoleBinding": lambda: {"roleRef": item["roleRef"]},
        "PodDisruptionBudget": lambda: {"selector": spec["selector"]},
        "ScaledObject": lambda: {"target": spec["scaleTargetRef"]},
    }.get(item["kind"], dict)()


# From one installation to another of the same values with more said, or with the switches turned over.
UPGRADES = [
    ("dev", "dev-openshift"),
    ("prod", "prod-identity"),
    ("prod", "prod-gpu-cluster"),
    ("dev", "ci"),
]


@pytest.mark.parametrize(("before", "after"), [*UPGRADES, *((after, before) for before, after in UPGRADES)])
def test_overrides_and_switches_change_nothing_that_is_fixed(helm4: Helm, before: str, after: str) -> None:
    old, new = ({title(item): item for item in helm4.rendered(install)} for install in (before, after))
    both = old.keys() & new.keys()
    assert any(title.startswith("Deployment") for title in both)
    for name in both:
        assert fixed(old[name]) == fixed(new[name])


def test_upgrade_from_the_first_release_keeps_selectors(helm4: Helm) -> None:
    """As they were installed: a change of the templates must not change them for those who have them."""
    for item in of_kind(helm4.rendered("dev"), "Deployment"):
        part = item["metadata"]["name"].removeprefix(f"{RELEASE}-")
        assert item["spec"]["selector"] == {
            "matchLabels": {
                "app.kubernetes.io/name": "rolecast",
                "app.kubernetes.io/instance": RELEASE,
                "app.kubernetes.io/component": part,
            }
        }


def test_packages_without_network(helm: Helm, tmp_path: Path) -> None:
    assert not list(CHART.rglob("*.tgz"))
    assert helm.run("package", str(CHART), "-d", str(tmp_path)).returncode == 0
    packed = Helm(helm.binary, next(tmp_path.glob("rolecast-*.tgz"))).template(*INSTALLS["ci"])
    assert [d for d in yaml.safe_load_all(packed.stdout) if d] == helm.rendered("ci")


def test_notes_name_the_next_step(helm4: Helm) -> None:
    def notes(*sets: str) -> str:
        flags = [flag for change in sets for flag in ("--set", change)]
        result = helm4.run("install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client", "-f", str(INSTALLS["dev"][0]), *flags)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("NOTES:")[1]

    assert f"helm -n {NAMESPACE} test {RELEASE}" in notes()
    assert "agent.enabled=true" in notes()
    assert f"kubectl -n {NAMESPACE} create secret generic rolecast-release --from-file=key=/dev/stdin" in notes()
    assert "rolecast-release" not in notes("rollout.enabled=false")
    assert f"service/{RELEASE}-agent" in notes("agent.enabled=true", "agent.run=s3://rolecast/dev/runs/demo")
    assert "policies are off" in notes("global.networkPolicy.enabled=false")
    by_token = notes("global.s3.credentials=token", "global.s3.token.stsEndpoint=https://sts.test", "global.s3.caConfigMap=private-ca")
    assert 's3_secret: null and s3_identity: {audience: sts.amazonaws.com, sts_endpoint: "https://sts.test"}' in by_token
    assert "s3_ca: private-ca" in by_token
    assert "s3_secret" not in notes()


def test_schemas_are_written_and_closed() -> None:
    found = importlib.util.spec_from_file_location("write_schemas", ROOT / "charts" / "write_schemas.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    documents: dict[Path, str] = module.documents()
    charts = {path.parent for path in CHART.rglob("Chart.yaml")}
    assert {path.parent for path in documents} == charts
    for path, content in documents.items():
        assert path.read_text() == content, f"{path} is not what charts/write_schemas.py writes; run it"
        for schema in objects_in(json.loads(content)):
            assert "additionalProperties" in schema, f"{path}: {schema}"
            assert schema["additionalProperties"] is not True


def objects_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects_in(value)


@pytest.mark.parametrize("part", [*PARTS, "learner", "common"])
def test_every_value_is_in_the_schema_and_every_key_has_a_default(part: str) -> None:
    """A key without a default would be found only by reading the schema. `shm` is told of in a comment."""
    chart = CHART / "charts" / part
    values = yaml.safe_load((chart / "values.yaml").read_text()) or {}
    properties = json.loads((chart / "values.schema.json").read_text())["properties"]
    assert set(properties) - {"global"} == set(values)
