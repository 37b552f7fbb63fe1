"""Runs the compiled job's pipeline on this machine, step by step, each step a process of its own (kfp.local)."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from rolecast.errors import InputError, RolecastError

if TYPE_CHECKING:
    from rolecast.config import RunConfig

log = logging.getLogger(__name__)


def run_local(path: Path, config: RunConfig) -> None:
    """Blocks until the pipeline ended. Finished stages of the run are found and not run again."""
    try:
        from kfp import local
    except ImportError:
        raise InputError("kfp is not installed; pip install 'rolecast[local]'") from None
    from rolecast_pipelines.sft_rl_eval import sft_rl_eval

    from rolecast.processes import PARENT
    from rolecast.stages.run import refuse_other

    refuse_other(path, config)  # here, in one line, not inside a step
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(path / ".kfp"), raise_on_error=True)
    os.environ[PARENT] = str(os.getpid())
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "You may be attemping", RuntimeWarning
            )  # images count on a cluster; here every step is a process
            sft_rl_eval(run=str(path.resolve()), config=config.model_dump_json())
    except RuntimeError as error:
        raise RolecastError(f"a step of the pipeline failed: {' '.join(str(error).split())[:300]}; its output is above") from error
    finally:
        del os.environ[PARENT]


def compile_pipeline(out: Path) -> None:
    """Writes the pipeline's YAML, byte for byte the same for the same code."""
    try:
        from kfp import compiler
    except ImportError:
        raise InputError("kfp is not installed; pip install 'rolecast[control]'") from None
    from rolecast_pipelines.sft_rl_eval import sft_rl_eval

    if out.is_dir() or out.suffix not in (".yaml", ".yml"):
        raise InputError(f"{out}: name a file that ends in .yaml")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is no directory; create it or choose another --out")
    compiler.Compiler().compile(sft_rl_eval, str(out))
