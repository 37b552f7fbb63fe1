"""Found on a learner's PYTHONPATH, it makes checkpoints take FAULTY_SAVE seconds, or fail where that is no number."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "rolecast.stages.checkpoints"


class Faulty(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            save = module.save

            def faulty(*arguments: Any, **named: Any) -> None:
                time.sleep(float(os.environ["FAULTY_SAVE"]))
                save(*arguments, **named)

            module.save = faulty  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "FAULTY_SAVE" in os.environ:
    sys.meta_path.insert(0, Faulty())
