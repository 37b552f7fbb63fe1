"""The launcher's Role is what the launcher does, right for right: all that it calls, and nothing that it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from cluster_stage import Stage, terminated
from fake_api import FakeApi

ROLE = Path(__file__).parents[3] / "charts/rolecast/charts/learner/templates/role.yaml"
# Rights of Argo's own containers in a step, and the token for a store's STS, which tests/unit/store/test_account_token.py asks for.
PIPELINES = r"\{\{- if (?:\.Values\.launcher\.kubeflowPipelines|eq \.Values\.global\.s3\.credentials \"token\") \}\}.*?\{\{- end \}\}"


def rights() -> set[tuple[str, str, str]]:
    """Group, resource and verb of each right, where no Kubeflow Pipelines run uses the account."""
    text = re.sub(PIPELINES, "", ROLE.read_text().split("---")[0], flags=re.DOTALL)
    role = yaml.safe_load(re.sub(r"^.*\{\{.*\}\}.*$", "", text, flags=re.MULTILINE))
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


# What a step asks for that puts a team in the place of another; test_deployments.py holds it to that.
DEPLOYING = {("serving.kserve.io", "inferenceservices", verb) for verb in ("create", "list", "update")} | {("apps", "deployments", "list")}


def play(api: FakeApi, kind: str) -> None:
    """A launcher that meets everything: a job of before, a pod that waits, a pod that is lost, a failure, an adoption, a success."""
    stage = Stage(api, kind, stage="rl", backoff={"retries": 1})
    workflow, success = stage.workflow(), "Succeeded" if kind == "pytorchjob" else "Complete"
    stage.existing()
    stage.condition("Failed")()
    pod = f"{stage.spec.job_name}-master-0"
    stage.then(stage.pod("Pending"))
    stage.then(lambda: api.cut_logs_after.append(1), stage.pod("Running"))
    stage.then(stage.pod("Failed", **terminated(1)), stage.condition("Failed"))
    api.logs[pod] = ["2026-01-01T00:00:00Z line 1", "2026-01-01T00:00:01Z line 2"]
    stage.then(stage.condition(success))
    stage.launch(workflow).run(stage.spec)
    stage.store.delete("rl/model")
    api.remove(stage.kind.plural, stage.spec.job_name)
    stage.existing()  # a live job, which is adopted
    stage.then(stage.condition(success))
    stage.launch(workflow).run(stage.spec)


def test_the_role_is_what_the_launcher_does(api: FakeApi) -> None:
    for kind in ("pytorchjob", "trainjob"):
        play(api, kind)
    used = {request.permission for request in api.requests}
    assert used | DEPLOYING == rights()
    assert not used & DEPLOYING


def test_a_role_without_wildcards_and_secrets() -> None:
    assert not any("*" in right for right in rights())
    assert not any(resource in ("secrets", "configmaps") for _, resource, _ in rights())


@pytest.mark.parametrize("verb", ["get pods", "patch services", "get workflows"])
def test_rights_are_read_from_the_chart(verb: str) -> None:
    assert verb in {f"{what} {resource}" for _, resource, what in rights()}
