"""Every method by name, with its configuration type."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rolecast.methods.base import Method
from rolecast.methods.baselines import Direct, DirectConfig, NaiveRag, NaiveRagConfig
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.search_r1 import SearchR1, SearchR1Config

AnyMethodConfig = Annotated[DecorConfig | SearchR1Config | NaiveRagConfig | DirectConfig, Field(discriminator="name")]
METHODS: dict[str, tuple[type[Method], type[Any]]] = {
    "decor": (Decor, DecorConfig),
    "search_r1": (SearchR1, SearchR1Config),
    "naive_rag": (NaiveRag, NaiveRagConfig),
    "direct": (Direct, DirectConfig),
}


def make_method(config: AnyMethodConfig) -> Method:
    return METHODS[config.name][0](config)


def describe() -> list[dict[str, Any]]:
    """What `rolecast methods` lists. Switches are the method's own options with their defaults."""
    rows = []
    for name, (method, config) in METHODS.items():
        default = config()
        roles = [{"name": r.name, "slot": r.slot, "sees": sorted(r.sees)} for r in method(default).roles.values()]
        switches = {key: value for key, value in default.model_dump(mode="json").items() if key != "name"}
        rows.append({"name": name, "trained": method.trained, "roles": roles, "switches": switches})
    return rows
