"""Every pipeline against its golden file and the rules for all of them: K22 to K27, references, resources, Secrets, tries, parameters."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rolecast_pipelines.comparison import make_comparison
from rolecast_pipelines.deployment import make_evaluate_and_deploy
from rolecast_pipelines.indexing import make_index_only
from rolecast_pipelines.schedule import make_pipeline

from rolecast.config import make_config
from rolecast.stages.comparison import plan
from tests.compiled import Compiled, Mapping

GOLDEN = Path(__file__).parents[2] / "golden" / "pipelines"
KEY = "ANSWERER_KEY"


def schedule_of(method: str) -> Any:
    return make_config({"method": {"name": method}}, method).schedule


# One for each shape of a schedule that methods have, and those beside them.
PIPELINES: dict[str, Callable[[], Any]] = {
    "sft_rl": lambda: make_pipeline(schedule_of("decor")),
    "decomposer": lambda: make_pipeline(schedule_of("decomposer"), [KEY]),
    "untrained": lambda: make_pipeline(schedule_of("naive_rag")),
    "compare": lambda: make_comparison(plan(["decor", "naive_rag"], [0, 1], 5000)),
    "index_only": make_index_only,
    "evaluate_and_deploy": lambda: make_evaluate_and_deploy([KEY]),
}
WITH_KEYS = ("decomposer", "evaluate_and_deploy")
STEPS = {
    "sft_rl": {"prepare": 1, "train": 2, "evaluate": 2, "report": 1, "conclude": 1},
    "decomposer": {"prepare": 1, "train": 4, "evaluate": 3, "report": 1, "conclude": 1},
    "untrained": {"prepare": 1, "train": 1, "evaluate": 1, "report": 1, "conclude": 1},
    "compare": {"prepare": 4, "train": 6, "evaluate": 6, "report": 4, "compare": 1, "conclude": 1},
    "index_only": {"index": 1, "conclude": 1},
    "evaluate_and_deploy": {"evaluate": 1, "gate": 1, "deploy": 1, "conclude": 1},
}


@pytest.fixture(scope="module", params=PIPELINES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def compiled(name: str, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled.of(PIPELINES[name](), tmp_path_factory.mktemp("pipeline"))


def kind_of(task: str) -> str:
    return re.sub(r"-\d+$", "", task)


def test_it_equals_the_golden_file(name: str, compiled: Compiled) -> None:
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(compiled.text)
    assert compiled.text == file.read_text(), f"{file} differs; if that is meant, run again with UPDATE_GOLDEN=1"


def test_every_method_has_a_schedule_of_a_pipeline_that_was_reviewed() -> None:
    from rolecast.methods.registry import known

    reviewed = {schedule_of(method) and digest(method) for method in ("decor", "decomposer", "naive_rag")}
    assert {digest(method) for method in known()} == reviewed


def digest(method: str) -> str:
    from rolecast.schedule import digest as of

    return of(schedule_of(method))


def test_k22_no_step_installs_anything(compiled: Compiled) -> None:
    assert "pip install" not in compiled.text


def test_k23_no_step_is_cached(compiled: Compiled) -> None:
    assert not [task for task, about in compiled.tasks.items() if about["cachingOptions"].get("enableCache")]


def test_k24_secrets_come_by_reference_and_each_step_gets_its_own(name: str, compiled: Compiled) -> None:
    for task, about in compiled.tasks.items():
        given = {key["envVar"] for secret in compiled.platform[compiled.executor(about)]["secretAsEnv"] for key in secret["keyToEnv"]}
        keys = {KEY} if name in WITH_KEYS and kind_of(task) == "evaluate" else set()
        token = {"ROLECAST_TOKEN"} if kind_of(task) == "evaluate" else set()
        told = {"ROLECAST_NOTIFY_URL"} if task == "conclude" else set()
        assert given == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} | keys | token | told
        for secret in compiled.platform[compiled.executor(about)]["secretAsEnv"]:
            assert set(secret) == {"keyToEnv", "optional", "secretNameParameter"}
    assert not re.search(r"secretAsVolume|AWS_SECRET_ACCESS_KEY=", compiled.text)
    assert not [executor for executor in compiled.spec["deploymentSpec"]["executors"].values() if "env" in executor["container"]]


def test_k25_the_tasks_are_few_and_the_ones_that_are_meant(name: str, compiled: Compiled) -> None:
    counts: dict[str, int] = {}
    for task in compiled.tasks:
        counts[kind_of(task)] = counts.get(kind_of(task), 0) + 1
    assert counts == STEPS[name]


ARTIFACTS = {
    "prepare": set(),
    "train": {"Markdown"},
    "evaluate": {"Metrics", "Artifact", "Markdown"},
    "report": {"HTML", "Markdown"},
    "compare": {"HTML", "Artifact", "Metrics", "Markdown"},
    "index": {"Metrics", "Markdown"},
    "gate": {"Metrics", "Markdown"},
    "deploy": {"Markdown"},
    "conclude": {"Markdown"},
}


def test_k26_k27_figures_are_json_too_and_what_happened_can_be_read(compiled: Compiled) -> None:
    for task, about in compiled.tasks.items():
        outputs = compiled.spec["components"][about["componentRef"]["name"]]["outputDefinitions"].get("artifacts", {})
        assert {output["artifactType"]["schemaTitle"].removeprefix("system.") for output in outputs.values()} == ARTIFACTS[kind_of(task)]


def test_every_reference_to_an_input_is_one_that_its_part_of_the_pipeline_has(compiled: Compiled) -> None:
    """kfp compiles others without a word, and the server cannot run them."""
    for task, about, inputs in compiled.places():
        given = about.get("inputs", {}).get("parameters", {})
        assert not [name for value in given.values() if (name := value.get("componentInputParameter")) and name not in inputs], task
        if compiled.nested(about) is None:
            executor = compiled.executor(about)
            container = json.dumps(compiled.spec["deploymentSpec"]["executors"][executor]["container"])
            assert set(re.findall(r"inputs\.parameters\['([^']+)'\]", container)) <= set(given), task
            platform = json.dumps(compiled.platform[executor])
            assert set(re.findall(r'"componentInputParameter": "([^"]+)"', platform)) <= set(inputs), task


def test_images_resources_nodes_and_pull_secrets_are_parameters_of_every_step(compiled: Compiled) -> None:
    for task, about in compiled.tasks.items():
        container = compiled.spec["deploymentSpec"]["executors"][compiled.executor(about)]["container"]
        assert "pipelinechannel--" in container["image"], task
        amounts = {key: value for key, value in container["resources"].items() if key != "accelerator"}
        assert set(amounts) == {f"resource{what}{how}" for what in ("Cpu", "Memory") for how in ("Request", "Limit")}, task
        kind = {"prepare": "index", "index": "index", "evaluate": "evaluation"}.get(kind_of(task), "control")
        assert amounts == {  # what it asks for is not what it may take
            f"resource{what}{how}": f"{{{{$.inputs.parameters['pipelinechannel--{kind}_{what.lower()}{suffix}']}}}}"
            for what in ("Cpu", "Memory")
            for how, suffix in (("Request", "_request"), ("Limit", ""))
        }, task
        assert ("accelerator" in container["resources"]) == (kind_of(task) == "evaluate"), task
        platform = compiled.platform[compiled.executor(about)]
        assert {"nodeSelector", "tolerations", "imagePullSecret"} <= set(platform), task
        (authority,) = platform["configMapAsVolume"]
        assert (authority["mountPath"], authority["optional"]) == ("/etc/rolecast/s3-ca", True), task
        assert "Parameter" in json.dumps(platform["imagePullSecret"]), task


def test_steps_are_tried_again_for_as_long_as_they_take_but_for_the_last(compiled: Compiled) -> None:
    for task, about in compiled.tasks.items():
        if task == "conclude":
            assert "retryPolicy" not in about
            continue
        # Argo ends a step's pod when this has passed since its first start.
        assert about["retryPolicy"]["backoffMaxDuration"] == f"{30 * 86400}s"
        assert about["retryPolicy"]["maxRetryCount"] == 2
        assert parameter(about, "execution") == "{{$.pipeline_job_uuid}}"  # what it ended with is recorded under it


def parameter(task: Mapping, name: str) -> str:
    return str(task["inputs"]["parameters"][name]["runtimeValue"]["constant"])


def test_steps_that_ask_the_api_server_know_their_pod_and_no_others_do(compiled: Compiled) -> None:
    for task, about in compiled.tasks.items():
        fields = {field["name"]: field["fieldPath"] for field in compiled.platform[compiled.executor(about)].get("fieldPathAsEnv", [])}
        asks = kind_of(task) in ("train", "gate", "deploy")
        own = {"ROLECAST_WORKFLOW": "metadata.labels['workflows.argoproj.io/workflow']", "ROLECAST_NAMESPACE": "metadata.namespace"}
        assert fields == (own if asks else {}), task


def test_every_parameter_says_what_it_is(compiled: Compiled) -> None:
    given = compiled.spec["root"]["inputDefinitions"]["parameters"]
    assert not [name for name, about in given.items() if len(about.get("description", "")) < 15]
    assert compiled.text.isascii()


def test_the_last_step_comes_however_the_others_ended(compiled: Compiled) -> None:
    last = compiled.root["conclude"]
    assert last["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert set(compiled.root) == {"conclude", "exit-handler-1"}
    assert last["inputs"]["parameters"]["status"] == {"taskFinalStatus": {"producerTask": "exit-handler-1"}}


def test_a_team_is_deployed_only_if_the_gate_says_so(tmp_path: Path) -> None:
    compiled = Compiled.of(make_evaluate_and_deploy(), tmp_path)
    (condition,) = [about for name, about, _ in compiled.places() if name.startswith("condition")]
    assert condition["triggerPolicy"]["condition"].split() == ["inputs.parameter_values['pipelinechannel--gate-Output']", "==", "'deploy'"]
    assert set(compiled.nested(condition)["tasks"]) == {"deploy"}  # type: ignore[index]
