"""Every config that we ship is one that the code takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast.config import load_config
from rolecast.methods.registry import DEFAULT, find, known

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
PRESETS = [Path(str(find(name).preset(preset))) for name in known() for preset in find(name).presets]


@pytest.mark.parametrize("path", [*CONFIGS, *PRESETS], ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_it_loads(path: Path) -> None:
    load_config(path, ["model.path=somewhere"] if path.stem == "small_model" else [])


def test_the_clusters_demo_differs_from_the_laptops_only_in_where_it_runs() -> None:
    [cluster] = [load_config(path) for path in CONFIGS if path.stem == "demo_cluster"]
    laptop = load_config(Path(str(find(DEFAULT).preset("demo"))))
    stages = {**cluster.stages, "rl": cluster.rl("rl").model_copy(update={"lease_seconds": 60.0})}
    same = {"rollouts": "local", "threads": None, "lockstep": True, "stages": stages}
    assert cluster.model_copy(update=same) == laptop
