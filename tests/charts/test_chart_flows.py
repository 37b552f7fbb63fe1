"""Which traffic the network policies let through, computed from the rendered policies as Kubernetes defines them (K41)."""

from __future__ import annotations

import pytest

from rolecast.launching.inferenceservice import ServingSpec
from rolecast.launching.inferenceservice import render as render_service
from rolecast.launching.learner_pod import pod_labels
from rolecast.launching.spec import TrainingJobSpec
from tests.charts.rendering import Helm, Object, of_kind, pods
from tests.charts.traffic import Labels, admits, selects


def matches(peer: Object, to: Labels | str) -> bool:
    """`to`: labels of a pod in the release's namespace, or a namespace's name for any pod there."""
    if "ipBlock" in peer:
        return False
    if isinstance(to, str):
        names = peer.get("namespaceSelector", {"matchLabels": {"": ""}})
        return "podSelector" not in peer and selects(names, {"kubernetes.io/metadata.name": to})
    return "namespaceSelector" not in peer and selects(peer["podSelector"], to)


def passes(objects: list[Object], direction: str, pod: Labels, other: Labels | str, port: int, protocol: str = "TCP") -> bool:
    return admits(objects, direction, pod, lambda peer: matches(peer, other), port, protocol)


def flows(objects: list[Object], source: Labels, target: Labels, port: int) -> bool:
    return passes(objects, "Egress", source, target, port) and passes(objects, "Ingress", target, source, port)


@pytest.fixture(scope="module")
def objects(helm4: Helm) -> list[Object]:
    return helm4.rendered("ci")


@pytest.fixture(scope="module")
def labels(objects: list[Object]) -> dict[str, Labels]:
    """Of services as the chart labels them, of jobs and KServe's pods as the launcher does, and of a stranger."""
    ours = {pod.labels["app.kubernetes.io/component"]: pod.labels for pod in pods(objects)}
    jobs = {stage: pod_labels(TrainingJobSpec(run="s3://rolecast/ci/runs/ci", stage=stage, image="x")) for stage in ("sft", "rl")}
    return {**ours, "learner": jobs["rl"], "sft": jobs["sft"], "stranger": {"app": "other"}}


ALLOWED = [
    ("rollout", "retriever", 8080),
    ("rollout", "judge", 8080),
    ("rollout", "learner", 8300),
    ("agent", "retriever", 8080),
    ("agent", "judge", 8080),
    ("learner", "learner", 29500),
    ("learner", "retriever", 8080),
    ("test", "retriever", 8080),
    ("test", "agent", 8080),
]
REFUSED = [
    ("stranger", "retriever", 8080),
    ("stranger", "learner", 8300),
    ("stranger", "agent", 8080),
    ("rollout", "retriever", 22),
    ("rollout", "learner", 29500),
    ("rollout", "sft", 8300),
    ("rollout", "agent", 8080),
    ("retriever", "learner", 8300),
    ("judge", "retriever", 8080),
    ("judge", "learner", 8300),
    ("agent", "rollout", 8080),
    ("agent", "learner", 8300),
    ("rollout", "rollout", 8080),
]


@pytest.mark.parametrize(("source", "target", "port"), ALLOWED)
def test_named_flow_passes(objects: list[Object], labels: dict[str, Labels], source: str, target: str, port: int) -> None:
    assert flows(objects, labels[source], labels[target], port)


@pytest.mark.parametrize(("source", "target", "port"), REFUSED)
def test_other_flow_is_refused(objects: list[Object], labels: dict[str, Labels], source: str, target: str, port: int) -> None:
    assert not flows(objects, labels[source], labels[target], port)


@pytest.mark.parametrize("part", ["retriever", "judge", "rollout", "agent", "learner", "test"])
def test_everyone_asks_dns_and_nobody_the_world(objects: list[Object], labels: dict[str, Labels], part: str) -> None:
    assert passes(objects, "Egress", labels[part], "kube-system", 53, "UDP")
    assert not passes(objects, "Egress", labels[part], "elsewhere", 53, "UDP")
    assert not passes(objects, "Egress", labels[part], "elsewhere", 80)


def test_prometheus_scrapes_services(objects: list[Object], labels: dict[str, Labels]) -> None:
    for part in ("retriever", "judge", "rollout", "agent"):
        assert passes(objects, "Ingress", labels[part], "monitoring", 8080)
        assert not passes(objects, "Ingress", labels[part], "elsewhere", 8080)
    assert passes(objects, "Ingress", labels["learner"], "monitoring", 8300)


@pytest.mark.parametrize("run", ["s3://rolecast/ci/runs/ci", "s3://rolecast/elsewhere/other"])
def test_workers_reach_the_coordinator_of_any_run(objects: list[Object], labels: dict[str, Labels], run: str) -> None:
    for stage, kind in (("rl", "rl"), ("plans", "rollout")):
        job = pod_labels(TrainingJobSpec(run=run, stage=stage, kind=kind, image="x"))
        assert flows(objects, labels["rollout"], job, 8300)


def test_one_value_moves_the_coordinators_port_in_policies_and_for_jobs(helm4: Helm, labels: dict[str, Labels]) -> None:
    objects = helm4.rendered("ci", "global.endpoints.coordinatorPort=8400")
    assert flows(objects, labels["rollout"], labels["learner"], 8400)
    assert passes(objects, "Ingress", labels["learner"], "monitoring", 8400)
    assert not flows(objects, labels["rollout"], labels["learner"], 8300)
    (data,) = [item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "rolecast-endpoints"]
    assert data["ROLECAST_COORDINATOR_PORT"] == "8400"


def test_s3_is_reached_by_those_who_store(helm4: Helm, labels: dict[str, Labels]) -> None:
    """Without peers the endpoint's port is open to any address."""
    objects = helm4.rendered("dev")
    for part in ("retriever", "rollout", "learner", "agent"):
        assert passes(objects, "Egress", labels[part], "minio", 9000), part
    assert not passes(objects, "Egress", labels["judge"], "minio", 9000)
    assert not passes(objects, "Egress", labels["test"], "minio", 9000)


def test_a_judge_whose_replicas_share_verdicts_stores_too(helm4: Helm, labels: dict[str, Labels]) -> None:
    models = ("judge.backend=ensemble", "judge.openai.url=https://models.test/v1", r"judge.openai.model=a\,b\,c")
    objects = helm4.rendered("dev", *models, "judge.cache=s3://rolecast/judge")
    assert passes(objects, "Egress", labels["judge"], "minio", 9000)
    [judge] = (pod for pod in pods(of_kind(objects, "Deployment")) if pod.owner.endswith("-judge"))
    env = {variable["name"]: variable.get("value") for variable in judge.containers[0]["env"]}
    assert (env["ROLECAST_JUDGE_CACHE"], env["ROLECAST_JUDGE_BACKEND"]) == ("s3://rolecast/judge", "ensemble")
    assert env["ROLECAST_JUDGE_OPENAI_MODEL"] == "a,b,c"
    assert "AWS_ACCESS_KEY_ID" in env


@pytest.mark.parametrize(
    ("endpoint", "port"), [("https://s3.test", 443), ("http://s3.test", 80), ("http://s3.test:9000", 9000), ("https://s3.test:8333", 8333)]
)
def test_s3_port_is_the_endpoints(helm4: Helm, endpoint: str, port: int) -> None:
    policy = next(
        p
        for p in of_kind(helm4.rendered("dev", f"global.s3.endpoint={endpoint}"), "NetworkPolicy")
        if p["metadata"]["name"].endswith("-s3")
    )
    assert [rule["port"] for rule in policy["spec"]["egress"][0]["ports"]] == [port]


def test_api_server_is_for_launching_pods(objects: list[Object], labels: dict[str, Labels]) -> None:
    control = {"app.kubernetes.io/part-of": "rolecast", "app.kubernetes.io/component": "control"}
    assert passes(objects, "Egress", control, "default", 6443)
    for part in ("retriever", "rollout", "learner", "agent"):
        assert not passes(objects, "Egress", labels[part], "default", 6443)


def test_endpoints_of_roles_are_reached_by_those_who_play_once_a_port_is_named(helm4: Helm, labels: dict[str, Labels]) -> None:
    objects = helm4.rendered("dev", "global.externals.ports={8443}")
    for part in ("rollout", "learner", "agent"):
        assert passes(objects, "Egress", labels[part], "elsewhere", 8443), part
        assert not passes(objects, "Egress", labels[part], "elsewhere", 443), part
        assert not passes(helm4.rendered("dev"), "Egress", labels[part], "elsewhere", 8443), part
    for part in ("retriever", "judge", "test"):
        assert not passes(objects, "Egress", labels[part], "elsewhere", 8443), part
    near = helm4.rendered("dev", "global.externals.ports={8443}", "global.externals.to[0].ipBlock.cidr=10.0.0.0/8")
    assert not passes(near, "Egress", labels["rollout"], "elsewhere", 8443)


def test_kserve_pods_have_flows_where_kserve_serves(helm4: Helm, labels: dict[str, Labels]) -> None:
    objects = helm4.rendered("prod")
    served = {
        kind: render_service(ServingSpec.model_validate({"kind": kind, "uri": "s3://b/runs/r/rl/model", "image": "x", "name": kind, **own}))
        for kind, own in (("agent", {"stage": "rl"}), ("vllm", {"gpus": 1}))
    }
    agent, predictor = (served[kind]["spec"]["predictor"]["labels"] for kind in ("agent", "vllm"))
    assert flows(objects, agent, predictor, 8080)
    assert flows(objects, agent, labels["retriever"], 8080)
    assert passes(objects, "Ingress", agent, "envoy-gateway-system", 8080)
    assert not flows(objects, labels["rollout"], predictor, 8080)


def test_second_release_uses_the_first_ones_services(helm4: Helm) -> None:
    first, second = helm4.rendered("prod"), helm4.rendered("prod-second-pool")
    worker = {**pods(of_kind(second, "Deployment"))[0].labels, "app.kubernetes.io/instance": "second"}
    retriever = next(pod.labels for pod in pods(of_kind(first, "Deployment")) if pod.owner.endswith("-retriever"))
    assert flows([*first, *second], worker, retriever, 8080)
