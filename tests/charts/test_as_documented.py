"""What the docs have one start on a node of two cores fits together: what pods ask for, who lets whom through, who may launch."""

from __future__ import annotations

import itertools
import re
import shlex
from decimal import Decimal
from typing import Any

import pytest
import yaml
from rolecast_pipelines.parameters import PLACE

from rolecast.launching.render import render_inference_service, render_job
from rolecast.reading import read_mapping
from tests.charts.rendering import CHART, ROOT, Helm, Object, of_kind, pods
from tests.charts.traffic import End, arrives, leaves

PAGES = ("install", "security", "jobs", "serving", "operations")
OPERATIONS = "\n".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES).replace("\\\n", " ")
UNITS = {"": Decimal(1), "m": Decimal("0.001"), "Mi": Decimal(2**20), "Gi": Decimal(2**30)}
CORES = Decimal(2)
# What kubeadm's control plane asks for: API server 250m, controller manager 200m, scheduler, etcd and two of CoreDNS 100m each.
CLUSTERS_OWN = Decimal("0.85")
NODE = Decimal(8 * 2**30)
# What is left for the kubelet, the operating system, the control plane and operators, of which hardly any ask for memory.
NODES_OWN = Decimal(2 * 2**30)


def amount(quantity: str) -> Decimal:
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return Decimal(number) * UNITS[unit]


def asked(objects: list[Object], what: str) -> Decimal:
    return sum((amount(container["resources"]["requests"][what]) for pod in pods(objects) for container in pod.containers), Decimal(0))


def rendered_by(kind: str, text: str = OPERATIONS) -> list[dict[str, Any]]:
    """The specs of the commands that render this kind, as they are written."""
    found = []
    for line in text.splitlines():
        if (command := re.match(rf"\$ rolecast deploy render --kind {kind} ([^|#]*)", line)) and "THE_RUN_BEFORE" not in line:
            words = shlex.split(command[1])
            found.append(read_mapping(None, [word for flag, word in itertools.pairwise(words) if flag == "--set"], "spec"))
    return found


def services(helm: Helm) -> list[Object]:
    return of_kind(helm.rendered("dev", "agent.enabled=true", "agent.run=s3://rolecast/dev/runs/demo"), "Deployment")


def test_values_for_one_node_say_what_the_parts_ask_for(helm4: Helm) -> None:
    head = " ".join(line.lstrip("# ") for line in (CHART / "values-dev.yaml").read_text().split("global:")[0].splitlines())
    cores, memory = re.search(r"together request (\S+) CPUs and (\S+) GiB", head).groups()  # type: ignore[union-attr]
    assert asked(services(helm4), "cpu") == Decimal(cores)
    assert asked(services(helm4), "memory") == Decimal(memory) * UNITS["Gi"]


@pytest.mark.parametrize(("what", "node", "own"), [("cpu", CORES, CLUSTERS_OWN), ("memory", NODE, NODES_OWN)])
def test_services_and_two_runs_at_once_fit_the_node(helm4: Helm, what: str, node: Decimal, own: Decimal) -> None:
    """Of each run a job, and beside it the step that launched it or one that evaluates or builds."""
    jobs = [render_job("pytorchjob", spec, "spec") for spec in rendered_by("pytorchjob")]
    assert len(jobs) == 2
    defaults = {parameter.name: parameter.default for parameter in PLACE}
    launching = amount(defaults[f"control_{what}_request"])
    others = max(amount(defaults[f"{kind}_{what}_request"]) for kind in ("index", "evaluation"))
    one = max(max(asked(job, what) for job in jobs) + launching, others)
    assert asked(services(helm4), what) + 2 * one + own <= node


def test_pods_request_what_they_were_measured_to_hold(helm4: Helm) -> None:
    rows = re.findall(r"^\| ([\w, ]+) \|(?: [\d,]+)? \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", OPERATIONS, re.MULTILINE)
    table = {name: [int(cell.replace(",", "")) for cell in cells] for name, *cells in rows}
    defaults = {parameter.name: parameter.default for parameter in PLACE}
    steps = {"step that prepares a run": "index", "step that evaluates": "evaluation", "step that launches": "control"}
    found = {name: (defaults[f"{kind}_memory_request"], defaults[f"{kind}_memory"]) for name, kind in steps.items()}
    for item in services(helm4):
        (pod,) = pods([item])
        part = pod.labels["app.kubernetes.io/component"].replace("rollout", "rollout worker")
        found[part] = tuple(pod.containers[0]["resources"][kind]["memory"] for kind in ("requests", "limits"))
    for spec, name in zip(rendered_by("pytorchjob"), ("learner, SFT", "learner, RL, with its coordinator"), strict=True):
        found[name] = (spec["memory_request"], spec["memory"])
    assert {name: [int(amount(one) / 2**20) for one in pair] for name, pair in found.items()} == {
        name: row[1:] for name, row in table.items()
    }
    assert all(measured <= request <= limit for measured, request, limit in table.values())


def test_the_readme_asks_for_as_much() -> None:
    (spec,) = rendered_by("pytorchjob", (ROOT / "README.md").read_text().replace("\\\n", " "))
    job = render_job("pytorchjob", spec, "spec")
    assert {what: asked(job, what) for what in ("cpu", "memory")} == {"cpu": Decimal("0.2"), "memory": 1280 * UNITS["Mi"]}


def test_the_pipelines_job_asks_for_what_a_job_by_hand_does() -> None:
    (text,) = re.findall(r"`(\{[^`]*rolecast-learner:dev[^`]*\})`", OPERATIONS)
    spec = {**yaml.safe_load(text), "run": "s3://rolecast/dev/runs/demo", "stage": "rl"}
    by_hand = render_job("pytorchjob", next(spec for spec in rendered_by("pytorchjob") if spec["stage"] == "rl"), "spec")
    assert render_job("pytorchjob", spec, "spec") == by_hand


def test_the_agent_behind_kserve_fits_in_the_place_of_the_charts(helm4: Helm) -> None:
    (spec,) = rendered_by("inferenceservice")
    (agent,) = [item for item in services(helm4) if item["metadata"]["name"].endswith("-agent")]
    pod = {"kind": "Pod", "metadata": {"name": "demo"}, "spec": render_inference_service(spec, "spec")["spec"]["predictor"]}
    for what in ("cpu", "memory"):
        assert 0 < asked([pod], what) <= asked([agent], what)


def test_the_agent_behind_kserve_may_ask_the_retriever(helm4: Helm) -> None:
    (spec,) = rendered_by("inferenceservice")
    (flags,) = re.findall(r"\$ helm upgrade [^\n]*--reset-then-reuse-values ([^\n]*agent\.server=kserve)", OPERATIONS)
    objects = helm4.rendered("dev", *flags.replace("--set ", "").split())
    agent = End(render_inference_service(spec, "spec")["spec"]["predictor"]["labels"])
    (retriever,) = [
        End(pod.labels) for pod in pods(of_kind(objects, "Deployment")) if pod.labels["app.kubernetes.io/component"] == "retriever"
    ]
    assert leaves(objects, agent, retriever, 8080)
    assert arrives(objects, agent, retriever, 8080)


def test_a_pipeline_alone_runs_as_an_account_that_may_launch_where_its_jobs_go(helm4: Helm) -> None:
    (account,) = re.findall(r"\$ rolecast pipeline submit [^\n]*--service-account (\S+)", OPERATIONS)
    values = yaml.safe_load((CHART / "values-dev.yaml").read_text())
    assert {"name": account, "namespace": "kubeflow"} in values["learner"]["launcher"]["subjects"]
    written = re.findall(r"\| kubectl -n kubeflow create (?:configmap|secret generic) (\S+)", OPERATIONS)
    names = {parameter.name: parameter.default for parameter in PLACE}
    assert set(written) == {names["endpoints"], names["s3_secret"]}
    specs = re.findall(r"(?:`|agent\.yaml: )(\{[^`}\n]*image: [^`}\n]*\})", OPERATIONS)
    assert [yaml.safe_load(spec).get("namespace") for spec in specs] == ["rolecast", "rolecast"]
