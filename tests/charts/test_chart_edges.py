"""Every connection that docs/architecture.md lists passes the policies of every installation, out of the one and into the other, and no
other one between pods of ours does (K41)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rolecast.launching.inferenceservice import ServingSpec
from rolecast.launching.inferenceservice import render as render_service
from rolecast.launching.learner_pod import pod_labels
from rolecast.launching.spec import TrainingJobSpec
from tests.charts.rendering import NAMESPACE, ROOT, Helm, Object, of_kind
from tests.charts.traffic import End, arrives, leaves

STEP = {"pipelines.kubeflow.org/v2_component": "true", "pipeline/runid": "x"}
SERVICES = {"retriever", "judge", "rollout", "agent", "predictor"}


def ours(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "rolecast", "app.kubernetes.io/part-of": "rolecast", "app.kubernetes.io/component": component}


def served(kind: str) -> dict[str, str]:
    own: dict[str, Any] = {"agent": {"stage": "rl"}, "vllm": {"gpus": 1}}[kind]
    spec = ServingSpec.model_validate({"kind": kind, "uri": "s3://b/runs/r/rl/model", "image": "x", "name": kind, **own})
    labels: dict[str, str] = render_service(spec)["spec"]["predictor"]["labels"]
    return labels


JOB = pod_labels(TrainingJobSpec(run="s3://rolecast/ci/runs/ci", stage="rl", image="x"))
ENDS = {
    **{name: End(ours(name)) for name in ("retriever", "judge", "rollout", "control", "test")},
    "learner": End(JOB),
    "coordinator": End(JOB),  # a child process of rank 0
    "agent": End(served("agent")),
    "predictor": End(served("vllm")),
    "pipeline step": End(STEP, "kubeflow"),
    "S3 store": End({"app": "minio"}, "minio"),
    "API server": End({}, "default"),
    "Prometheus": End({"app": "prometheus"}, "monitoring"),
    "DNS": End({"k8s-app": "kube-dns"}, "kube-system"),
}


def listed() -> list[tuple[str, str, str]]:
    """From, to and port of each row of the table, names that share a row apart."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.split("| from | to | port | for |\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [(a, b, port) for sources, targets, port, _ in rows for a in sources.split(", ") for b in targets.split(", ")]


def installed(helm: Helm, install: str) -> list[Object]:
    """A second release has the first one beside it."""
    return [*(helm.rendered("prod") if install.startswith("prod-second") else []), *helm.rendered(install)]


def present(objects: list[Object]) -> set[str]:
    """Ends that this installation has: those with a policy, and those that are not the chart's."""
    policies = {item["metadata"]["name"].split("-", 1)[1] for item in of_kind(objects, "NetworkPolicy")}
    found = {name for name in ENDS if name in policies}
    return (
        found
        | {"test", "pipeline step", "S3 store", "API server", "Prometheus", "DNS"}
        | ({"coordinator"} if "learner" in found else set())
    )


def port_of(objects: list[Object], port: str) -> tuple[int, str]:
    if port == "the endpoint's":
        endpoints = next(item["data"] for item in of_kind(objects, "ConfigMap") if "ROLECAST_S3_ENDPOINT" in item["data"])
        at = urlsplit(endpoints["ROLECAST_S3_ENDPOINT"])
        return at.port or {"http": 80, "https": 443}[at.scheme], "TCP"
    return (29500, "TCP") if port == "any" else (int(port), "UDP" if port == "53" else "TCP")


def edges(objects: list[Object]) -> Iterator[tuple[str, str, str]]:
    there = present(objects)
    return ((a, b, port) for a, b, port in listed() if {a, b} <= there)


def test_the_table_has_the_edges_of_the_picture() -> None:
    """Or the walk below would walk past one."""
    pairs = {(a, b) for a, b, _ in listed()}
    assert len(pairs) == len(listed())
    assert {name for pair in pairs for name in pair} == set(ENDS)
    assert {("rollout", "coordinator"), ("rollout", "retriever"), ("rollout", "judge"), ("agent", "retriever"), ("pipeline step", "retriever"),
            ("pipeline step", "judge"), ("learner", "S3 store"), ("rollout", "S3 store"), ("retriever", "S3 store"), ("agent", "S3 store"),
            ("pipeline step", "API server"), ("control", "API server")} <= pairs  # fmt: skip


def test_every_edge_passes_both_ways(helm4: Helm, install: str) -> None:
    objects = installed(helm4, install)
    walked = list(edges(objects))
    assert {("pipeline step", "judge", "8080"), ("rollout", "coordinator", "8300")} <= set(walked)
    for a, b, port in walked:
        number, protocol = port_of(objects, port)
        assert leaves(objects, ENDS[a], ENDS[b], number, protocol), f"{a} → {b}:{number} cannot leave"
        assert arrives(objects, ENDS[a], ENDS[b], number, protocol), f"{a} → {b}:{number} cannot arrive"


def test_no_other_edge_between_pods_passes(helm4: Helm, install: str) -> None:
    objects = installed(helm4, install)
    there = present(objects)
    allowed = {(a, "learner" if b == "coordinator" else b, port_of(objects, port)[0]) for a, b, port in edges(objects)}
    allowed |= {("learner", "learner", port) for port in (8080, 8300, 22)}  # ranks, on any port
    pods = sorted(there & {*SERVICES, "learner", "control", "test", "pipeline step"})
    for a, b, port in itertools.product(pods, pods, (8080, 8300, 22)):
        if (a, b, port) not in allowed and b != "pipeline step":
            assert not (leaves(objects, ENDS[a], ENDS[b], port) and arrives(objects, ENDS[a], ENDS[b], port)), f"{a} → {b}:{port} passes"


def test_openshifts_dns_and_prometheus_are_where_they_are_there(helm4: Helm) -> None:
    """Policies see the ports of pods: OpenShift's DNS listens on 5353 behind a Service on 53."""
    objects = helm4.rendered("dev-openshift")
    for part in ("retriever", "rollout", "learner"):
        assert leaves(objects, ENDS[part], End({}, "openshift-dns"), 5353, "UDP")
        assert not leaves(helm4.rendered("dev"), ENDS[part], End({}, "openshift-dns"), 5353, "UDP")
    assert arrives(objects, End({}, "openshift-user-workload-monitoring"), ENDS["retriever"], 8080)


@pytest.mark.parametrize(
    ("step", "taken"),
    [
        (End(STEP, "kubeflow"), True),
        (End(STEP, NAMESPACE), True),  # of a profile that is the release's namespace
        (End(STEP, "elsewhere"), False),
        (End({"app": "notebook"}, "kubeflow"), False),
        (End({}, NAMESPACE), False),
    ],
)
def test_steps_are_known_by_namespace_and_label_together(helm4: Helm, install: str, step: End, taken: bool) -> None:
    objects = installed(helm4, install)
    for part in ("retriever", "judge"):
        assert arrives(objects, step, ENDS[part], 8080) == taken
    assert not arrives(objects, step, ENDS["coordinator"], 8300)
    assert not arrives(objects, step, ENDS["rollout"], 8080)


def test_the_chart_is_told_where_steps_run_and_what_they_are_labelled(helm4: Helm) -> None:
    told = "global.networkPolicy.pipelines.from[0]"
    objects = helm4.rendered(
        "dev",
        f"{told}.namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=team-a",
        f"{told}.podSelector.matchLabels.example/step=yes",
    )
    for part in ("retriever", "judge"):
        assert arrives(objects, End({"example/step": "yes"}, "team-a"), ENDS[part], 8080)
        assert not arrives(objects, End(STEP, "kubeflow"), ENDS[part], 8080)


@pytest.mark.parametrize(
    ("sets", "ports"),
    [
        (("global.s3.credentials=cloud",), {443, 80}),
        (("global.s3.credentials=token",), {443}),
        (("global.s3.credentials=token", "global.s3.token.stsEndpoint=https://sts.test:8443"), {8443}),
        (("global.s3.credentials=token", "global.networkPolicy.sts.ports={7443}"), {7443}),
        ((), set()),
    ],
)
def test_who_stores_reaches_the_sts_of_its_identity(helm4: Helm, sets: tuple[str, ...], ports: set[int]) -> None:
    objects = helm4.rendered("dev", *sets)
    sts = End({}, "elsewhere", "203.0.113.7")
    for part in ("retriever", "rollout", "learner", "agent", "predictor", "control"):
        let_out = {port for port in (443, 80, 8443, 7443) if leaves(objects, ENDS[part], sts, port)}
        assert let_out == ports | ({443} if part == "control" else set())  # where the API server may be
    assert not leaves(objects, ENDS["judge"], sts, 443)


@pytest.mark.parametrize(
    ("sets", "port"),
    [
        (("global.tracing.endpoint=http://collector.test:4318",), 4318),
        (("global.tracing.endpoint=https://collector.test/otlp",), 443),
        (("global.tracing.endpoint=http://collector.test:4318", "global.networkPolicy.otlp.ports={14318}"), 14318),
        ((), None),
    ],
)
def test_services_reach_the_collector_that_they_are_told_of(helm4: Helm, sets: tuple[str, ...], port: int | None) -> None:
    objects = helm4.rendered("dev", *sets)
    collector = End({}, "elsewhere", "203.0.113.8")
    for part in ("retriever", "judge", "rollout", "agent"):
        assert {at for at in (443, 4318, 14318) if leaves(objects, ENDS[part], collector, at)} == ({port} if port else set())
    assert not leaves(objects, ENDS["learner"], collector, 4318)
    (data,) = [item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "rolecast-endpoints"]
    told = {key: data[key] for key in ("ROLECAST_TRACING", "OTEL_EXPORTER_OTLP_ENDPOINT") if key in data}
    assert told == ({"ROLECAST_TRACING": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": sets[0].partition("=")[2]} if sets else {})
    near = helm4.rendered("dev", *sets, "global.networkPolicy.otlp.to[0].ipBlock.cidr=10.0.0.0/8")
    assert not any(leaves(near, ENDS["judge"], collector, at) for at in (443, 4318, 14318))


def test_a_webhook_is_told_by_control_pods_once_its_port_is_named(helm4: Helm) -> None:
    webhook = End({}, "elsewhere", "203.0.113.9")
    for objects, open_ in ((helm4.rendered("dev"), False), (helm4.rendered("dev", "global.networkPolicy.notify.ports={8443}"), True)):
        assert leaves(objects, ENDS["control"], webhook, 8443) == open_
        assert not leaves(objects, ENDS["judge"], webhook, 8443)


def test_steps_may_have_a_token_where_the_store_takes_tokens(helm4: Helm) -> None:
    for sets, wanted in (((), False), (("global.s3.credentials=token", "global.s3.token.audience=sts.test"), True)):
        objects = helm4.rendered("dev", *sets)
        rules = [rule for role in of_kind(objects, "Role") for rule in role["rules"] if rule["resources"] == ["serviceaccounts/token"]]
        assert [(rule["resourceNames"], rule["verbs"]) for rule in rules] == ([(["rolecast-launcher"], ["create"])] if wanted else [])
        (data,) = [item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "rolecast-endpoints"]
        assert data.get("ROLECAST_S3_AUDIENCE") == ("sts.test" if wanted else None)


def test_every_row_names_a_port() -> None:
    assert all(re.fullmatch(r"\d+|any|the endpoint's", port) for _, _, port in listed())
