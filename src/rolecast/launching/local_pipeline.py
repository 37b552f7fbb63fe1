"""Runs the compiled job's pipeline on this machine, step by step, each step a process of its own (kfp.local)."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rolecast.errors import InputError, RolecastError
from rolecast.installed import MissingPackageError, extras, missing
from rolecast.schedule import Schedule
from rolecast.scratch import scratch
from rolecast.signals import handled

if TYPE_CHECKING:
    from rolecast.config import RunConfig
    from rolecast.launching.overrides import Overrides


def run_local(path: Path, config: RunConfig, procs: int | None = None) -> None:
    """Blocks until the pipeline ended. Finished stages of the run are found and not run again. `procs`: processes that train a stage.

    Told to end, it has the step that runs save what it has and ends with `Interrupted`.
    """
    if lacking := missing(extras()["train"]):  # before any work, and not inside a step
        raise MissingPackageError(lacking[0], "local")
    from rolecast_pipelines.schedule import make_pipeline

    from rolecast.stages.checks import check_run, require_engine, require_ranks
    from rolecast.stages.run import refuse_other

    refuse_other(path, config)  # here, in one line, not inside a step
    check_run(config, path)
    require_engine(config)
    require_ranks(config, procs)
    job = json.dumps({"procs_per_node": procs} if procs else {})
    run_here(make_pipeline(config.schedule), {"run": str(path.resolve()), "config": config.model_dump_json(), "job": job})


def run_here(pipeline: Any, arguments: Mapping[str, Any]) -> None:
    """Runs a pipeline of `rolecast_pipelines` in processes of this machine."""
    from kfp import local
    from kfp.local import subprocess_task_handler

    from rolecast.launching.local_steps import Steps

    steps = Steps(sys.stdout)
    with ExitStack() as stack:
        folder = str(stack.enter_context(scratch("pipeline")))  # for what steps hand to each other
        stack.enter_context(handled(steps.stop))
        stack.enter_context(redirect_stdout(io.StringIO()))  # kfp's account of itself; steps have the real one
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of images and display names, which a cluster shows
        # kfp's own function keeps neither a step's process, which is to be told to end, nor how it ended.
        stack.enter_context(patch.object(subprocess_task_handler, "run_local_subprocess", steps.run))
        local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=folder, raise_on_error=True)
        _try_once(pipeline)
        try:
            pipeline(**arguments)
        except RuntimeError as error:
            if not steps.failed:
                raise RolecastError(f"the pipeline could not be run: {' '.join(str(error).split())[:300]}") from error
            raise steps.failure() from None


def _try_once(pipeline: Any) -> None:
    """On a cluster a step that was lost is tried again, after a while. Here whoever reads how it ended gives the command again."""
    spec = pipeline.pipeline_spec
    for dag in (spec.root.dag, *(component.dag for component in spec.components.values())):
        for task in dag.tasks.values():
            task.ClearField("retry_policy")


def compile_pipeline(out: Path, schedule: Schedule, keys: Sequence[str] = (), overrides: Overrides | None = None) -> None:
    """Writes the YAML of the schedule's pipeline, byte for byte the same for the same code. `keys`: see `make_pipeline`."""
    from rolecast_pipelines.overrides import NOTHING
    from rolecast_pipelines.schedule import make_pipeline

    write_pipeline(out, make_pipeline(schedule, keys, overrides or NOTHING))


def write_pipeline(out: Path, pipeline: Any, arguments: Mapping[str, Any] | None = None) -> None:
    """With `arguments` as what its parameters are where a run is given none."""
    from kfp import compiler

    try:
        if out.is_dir():
            raise InputError(f"{out} is a folder; name a file in it that ends in .yaml")
        if out.suffix not in (".yaml", ".yml"):
            raise InputError(f"{out}: name a file that ends in .yaml")
        if not out.parent.is_dir():
            raise InputError(f"{out.parent} is no directory; create it or choose another --out")
        compiler.Compiler().compile(pipeline, str(out), pipeline_parameters=dict(arguments or {}))
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); choose another place or make room") from None
