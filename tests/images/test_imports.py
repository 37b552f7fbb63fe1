"""What a part runs can be imported with the packages of its image alone: all others are hidden."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from tests.images.dockerfiles import IMAGES, PARTS, locked
from tests.images.test_locks import normal

MODULES = {
    "control": "rolecast.stages.tasks rolecast.stages.report rolecast.launching.launcher rolecast.launching.render "
    "rolecast.launching.submit rolecast_pipelines.schedule kfp.dsl.executor_main",
    "retriever": "rolecast.retriever.app rolecast.retriever.bm25 rolecast.retriever.dense rolecast.retriever.encoder rolecast.stages.index "
    "rolecast.stages.world rolecast.stages.tasks kfp.dsl.executor_main",
    "judge": "rolecast.judge.app rolecast.judge.openai",
    "rollout": "rolecast.rollout.app rolecast.stages.evaluate peft rolecast.stages.tasks kfp.dsl.executor_main",
    "learner": "rolecast.learner.main rolecast.learner.backends rolecast.stages.train rolecast.stages.sft rolecast.stages.rl rolecast.coordinator.main peft deepspeed",
    "agent": "rolecast.agent.app rolecast.agent.model rolecast.stages.serve rolecast.retriever.client kserve",
}
ALWAYS = "rolecast.config rolecast.cli.main rolecast.service.server rolecast.store.s3"


@pytest.mark.parametrize("part", PARTS)
def test_the_part_needs_only_its_image_s_packages(part: str) -> None:
    carried = {"rolecast", *locked(IMAGES / part / "requirements.lock")}
    hidden = [
        name
        for name, owners in packages_distributions().items()
        if not carried & {normal(owner) for owner in owners} and name.isidentifier()
    ]
    assert {"pytest", "hypothesis"} <= set(hidden)
    always = "" if part == "control" else ALWAYS if part == "learner" else f"{ALWAYS} rolecast.opentelemetry_spans"
    code = f"import sys\nfor name in {hidden!r}: sys.modules[name] = None\n"
    code += "\n".join(f"import {module}" for module in f"{always} {MODULES[part]}".split())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"DS_ACCELERATOR": "cpu", "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
