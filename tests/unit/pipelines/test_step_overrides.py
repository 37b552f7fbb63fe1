"""The shared overrides on a pipeline's steps: each is there in the compiled pipeline, or refused in one line while it is compiled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl
from rolecast_pipelines.deployment import make_evaluate_and_deploy
from rolecast_pipelines.indexing import make_index_only
from rolecast_pipelines.schedule import make_pipeline
from typer.testing import CliRunner

from rolecast.cli.pipeline import app
from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.launching import overrides, submit, volumes
from rolecast.launching.overrides import Overrides
from tests.compiled import Compiled
from tests.refused_overrides import MALFORMED, OURS

GOLDEN = Path(__file__).parents[2] / "golden"
SPEC = GOLDEN / "specs" / "steps_overridden.yaml"
BLOCK: dict[str, Any] = yaml.safe_load(SPEC.read_text())
STATES = {"emptyDir": {"sizeLimit": "1Gi"}}
TERM = {"topologyKey": "kubernetes.io/hostname"}
CLAIM = {"claimName": "datasets"}


def held(volume: dict[str, Any], **mount: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "vol", **volume}], "volumeMounts": [{"name": "vol", "mountPath": "/vol", **mount}]}


# What kfp-kubernetes has no way for, under the key that is told.
NO_WAY: list[tuple[str, dict[str, Any]]] = [
    *((f"podSecurityContext.{key}", {"podSecurityContext": {key: value}}) for key, value in (
        ("fsGroup", 0), ("fsGroupChangePolicy", "Always"), ("supplementalGroups", [4000]),
        ("seccompProfile", {"type": "RuntimeDefault"}), ("seLinuxOptions", {"level": "s0"}),
    )),
    *((f"securityContext.{key}", {"securityContext": {key: value}}) for key, value in (
        ("readOnlyRootFilesystem", True), ("capabilities", {"add": ["IPC_LOCK"]}), ("seccompProfile", {"type": "RuntimeDefault"}),
        ("seLinuxOptions", {"level": "s0"}),
    )),
    ("envFrom", {"envFrom": [{"configMapRef": {"name": "nccl-tuning"}}]}),
    ("affinity.podAffinity", {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}}),
    ("affinity.podAntiAffinity", {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}}),
    ("topologySpreadConstraints", {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **TERM}]}),
    ("priorityClassName", {"priorityClassName": "high"}),
    ("runtimeClassName", {"runtimeClassName": "nvidia"}),
    ("extraResources", {"extraResources": {"rdma/hca": 1}}),
    ("volumes.vol.csi", held({"csi": {"driver": "d"}})),
    ("volumes.vol.configMap.items", held({"configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}})),
    ("volumes.vol.configMap.defaultMode", held({"configMap": {"name": "c", "defaultMode": 0}})),
    ("volumes.vol.secret.items", held({"secret": {"secretName": "s", "items": [{"key": "a", "path": "b"}]}})),
    ("volumes.vol.secret.defaultMode", held({"secret": {"secretName": "s", "defaultMode": 288}})),
    ("volumes.vol.persistentVolumeClaim.readOnly", held({"persistentVolumeClaim": {**CLAIM, "readOnly": True}})),
    ("volumeMounts.vol.readOnly", held({"persistentVolumeClaim": CLAIM}, readOnly=True)),
    ("volumeMounts.vol.readOnly", held(STATES, readOnly=True)),
    ("volumeMounts.vol.subPath", held(STATES, subPath="a")),
    ("volumeMounts.vol.subPath", held({"configMap": {"name": "c"}}, subPath="a")),
    ("volumeMounts.vol.subPath", held({"secret": {"secretName": "s"}}, subPath="a")),
    ("volumes.vol: a step of Kubeflow Pipelines cannot be given this; it is mounted 0 times", {"volumes": [{"name": "vol", **STATES}]}),
    ("volumes.vol: a step of Kubeflow Pipelines cannot be given this; it is mounted 2 times", {
        **held(STATES), "volumeMounts": [{"name": "vol", "mountPath": "/a"}, {"name": "vol", "mountPath": "/b"}],
    }),
    ("volumes.b: a step of Kubeflow Pipelines cannot be given this; it would have the name of volume a, same", {
        "volumes": [{"name": "a", "configMap": {"name": "same"}}, {"name": "b", "secret": {"secretName": "same"}}],
        "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}],
    }),
    ("labels: pipelines.kubeflow.org/v2_component is set by Kubeflow Pipelines", {"labels": {"pipelines.kubeflow.org/v2_component": "no"}}),
    ("annotations: workflows.argoproj.io/node-name is set by Kubeflow Pipelines", {"annotations": {"workflows.argoproj.io/node-name": "x"}}),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled.of(make_evaluate_and_deploy((), Overrides(**BLOCK)), tmp_path_factory.mktemp("pipeline"))


def test_it_equals_the_golden_file(compiled: Compiled) -> None:
    file = GOLDEN / "pipelines" / "evaluate_and_deploy_overridden.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(compiled.text)
    assert compiled.text == file.read_text(), f"{file} differs; if that is meant, run again with UPDATE_GOLDEN=1"


def test_every_step_is_given_the_block(compiled: Compiled) -> None:
    assert set(compiled.tasks) == {"evaluate", "gate", "deploy", "conclude"}
    for task, about in compiled.tasks.items():
        platform = compiled.platform[compiled.executor(about)]
        container = compiled.spec["deploymentSpec"]["executors"][compiled.executor(about)]["container"]
        assert platform["podMetadata"] == {
            "labels": {"cost-center": "research"},
            "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net", overrides.SAFE_TO_EVICT: "false"},
        }, task
        assert {key: int(value) for key, value in platform["securityContext"].items()} == {
            "runAsUser": 4001, "runAsGroup": 4000, "runAsNonRoot": 1,
        }, task  # fmt: skip
        assert container["env"] == [{"name": "NO_PROXY", "value": ".svc,.cluster.local"}], task
        assert {"keyToEnv": [{"envVar": "HTTPS_PROXY", "secretKey": "url"}], "optional": False, "secretName": "proxy"} in [
            {key: value for key, value in secret.items() if key != "secretNameParameter"} for secret in platform["secretAsEnv"]
        ], task
        assert {"name": "NODE", "fieldPath": "spec.nodeName"} in platform["fieldPathAsEnv"], task
        assert "hca" in json.dumps(platform["configMapAsEnv"]), task
        mounted = {kind: [one["mountPath"] for one in platform[kind]] for kind in platform if "mountPath" in json.dumps(platform[kind])}
        assert mounted == {
            "configMapAsVolume": ["/etc/rolecast/s3-ca", "/etc/nccl"],
            "secretAsVolume": ["/etc/license"],
            "pvcMount": ["/datasets"],
            "emptyDirMounts": ["/fast"],
            "genericEphemeralVolume": ["/space"],
        }, task
        (nodes,) = platform["nodeAffinity"]
        assert nodes["nodeAffinityJson"]["runtimeValue"]["constant"] == BLOCK["affinity"]["nodeAffinity"], task
        assert [one for one in platform["tolerations"] if "key" in one] == [
            {"key": "example/rdma", "operator": "Exists"},
            {"key": "dedicated", "operator": "Equal", "value": "search", "effect": "NoExecute", "tolerationSeconds": "300"},
        ], task
        assert sum("tolerationJson" in one for one in platform["tolerations"]) == 1, task  # the parameter's
    evaluates = compiled.spec["deploymentSpec"]["executors"][compiled.executor(compiled.tasks["evaluate"])]["container"]
    assert evaluates["resources"]["accelerator"]["resourceType"] == "nvidia.com/mig-3g.40gb"
    assert compiled.spec["root"]["inputDefinitions"]["parameters"]["node_selector"]["defaultValue"] == {"example/pool": "pipelines"}


@pytest.mark.parametrize(("key", "given"), NO_WAY, ids=[f"{number}-{key.split(':')[0]}" for number, (key, _) in enumerate(NO_WAY)])
def test_what_a_step_cannot_be_given_is_refused_with_its_key(key: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError) as raised:
        make_index_only(Overrides(**given))
    assert str(raised.value).startswith(f"overrides.{key}")
    assert "\n" not in str(raised.value)


def leaves(given: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The keys that are said, each with those above it."""
    if isinstance(given, dict):
        return {(*path, key) for key in given} | {leaf for key, value in given.items() for leaf in leaves(value, (*path, key))}
    return {leaf for value in given for leaf in leaves(value, path)} if isinstance(given, list) else set()


def said(model: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    return {(*path, field.alias or name) for name, field in model.model_fields.items()}


def test_no_key_of_the_block_is_without_a_place_or_a_refusal() -> None:
    """A key that the block gets later is seen here first."""
    tried = leaves(BLOCK) | {leaf for _, given in NO_WAY for leaf in leaves(given)}
    volume = ("volumes",)
    every = said(Overrides) | said(overrides.PodSecurity, ("podSecurityContext",)) | said(overrides.ContainerSecurity, ("securityContext",))
    every |= said(volumes.Volume, volume) | said(volumes.Mount, ("volumeMounts",)) | said(overrides.Affinity, ("affinity",))
    for kind, model in (
        ("configMap", volumes.ConfigMapVolume), ("secret", volumes.SecretVolume), ("persistentVolumeClaim", volumes.ClaimVolume),
        ("emptyDir", volumes.EmptyVolume), ("ephemeral", volumes.EphemeralVolume),
    ):  # fmt: skip
        every |= said(model, (*volume, kind))
    optional = {("volumes", kind, "optional") for kind in ("configMap", "secret")}  # tried on one of the two
    assert every - tried - optional == set()


@pytest.mark.parametrize(
    "given",
    [
        {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},  # OpenShift's
        {"topologySpreadConstraints": [], "envFrom": [], "affinity": None, "priorityClassName": None},
        {"securityContext": {"readOnlyRootFilesystem": False}},
    ],
)
def test_what_asks_for_nothing_changes_nothing(given: dict[str, Any], tmp_path: Path) -> None:
    assert Compiled.of(make_index_only(Overrides(**given)), tmp_path).text == Compiled.of(make_index_only(), tmp_path).text


@pytest.mark.parametrize("name", ["ROLECAST_STORE", "AWS_SECRET_ACCESS_KEY", "ROLECAST_WORKFLOW", "ROLECAST_TOKEN", "BIG_KEY"])
def test_a_variable_that_a_step_has_of_us_is_refused(name: str) -> None:
    given = Overrides(env={name: {"secretKeyRef": {"name": "x", "key": "y"}}})
    with pytest.raises(InputError, match=rf"overrides\.env: variable {name} is set by Rolecast"):
        make_pipeline(RunConfig().schedule, ["BIG_KEY"], given)


def block(folder: Path, given: dict[str, Any]) -> str:
    (folder / "pods.yaml").write_text(yaml.safe_dump(given))
    return str(folder / "pods.yaml")


def command(*words: str) -> None:
    result = CliRunner().invoke(app, list(words))
    if result.exception:
        raise result.exception


INDEX = ("index-only", "--corpus", "s3://b/c.jsonl", "--index", "s3://b/i")


@pytest.mark.parametrize(("given", "message"), [*OURS, *MALFORMED])
def test_the_command_refuses_what_charts_and_jobs_refuse(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        command(*INDEX, "--out", str(tmp_path / "p.yaml"), "--overrides", block(tmp_path, given))
    assert message in str(raised.value)
    assert "pods.yaml" in str(raised.value)


def test_every_command_takes_the_block(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("{name: demo, image: 'agent:1'}")
    commands = {
        "compile": (),
        "index-only": INDEX[1:],
        "deploy": ("--run", "s3://b/runs/a", "--stage", "rl", "--service", str(tmp_path / "agent.yaml")),
        "compare": ("--methods", "decor", "--budget", "5000", "--run", "s3://b/runs/c", "--launcher", "local"),
    }
    for name, words in commands.items():
        out = tmp_path / f"{name}.yaml"
        command(name, *words, "--out", str(out), "--overrides", block(tmp_path, {"labels": {"cost-center": "research"}}))
        compiled = Compiled.read(out.read_text())
        labelled = [compiled.platform[compiled.executor(about)].get("podMetadata") for about in compiled.tasks.values()]
        assert labelled == [{"labels": {"cost-center": "research"}}] * len(labelled), name


def test_a_run_that_is_submitted_has_the_block_and_both_kinds_of_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[tuple[dict[str, Any], Any]] = []

    def start(host: Any, arguments: dict[str, Any], pipeline: dsl.base_component.BaseComponent, **about: Any) -> submit.Submission:
        sent.append((arguments, pipeline))
        return submit.Submission("1", "http://kfp/1")

    monkeypatch.setattr(submit, "submit", start)
    file = block(tmp_path, {"nodeSelector": {"pool": "pipelines"}, "priorityClassName": None})
    words = ("submit", "--config", "configs/demo_cluster.yaml", "--run", "s3://b/runs/a", "--launcher", "local", "--overrides", file)
    command(*words, "--parameter", "node_selector={zone: a}")
    command(*words)
    (arguments, pipeline), (plain, _) = sent
    assert arguments["node_selector"] == {"zone": "a", "pool": "pipelines"}
    assert "node_selector" not in plain
    spec = Compiled.of(pipeline, tmp_path).spec
    assert spec["root"]["inputDefinitions"]["parameters"]["node_selector"]["defaultValue"] == {"pool": "pipelines"}
