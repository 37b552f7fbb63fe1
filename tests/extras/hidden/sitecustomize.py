"""Imported by every interpreter that is started with this folder on its path: what the file ROLECAST_TEST_HIDDEN lists is not installed."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType

LISTED = json.loads(Path(os.environ["ROLECAST_TEST_HIDDEN"]).read_text())


class Visible(PathFinder):
    """Finds neither the modules nor the metadata of hidden packages: they are as good as absent, in child processes too."""

    @classmethod
    def find_spec(cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in LISTED["modules"] else super().find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008
        for found in super().find_distributions(context):
            if re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower() not in LISTED["packages"]:
                yield found


sys.meta_path[sys.meta_path.index(PathFinder)] = Visible
