"""Fields of Kubernetes objects as users write them, which jobs, services and overrides share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_serializer, model_validator
from pydantic.alias_generators import to_camel

_AMOUNT = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"


def _quantity(value: Any) -> Any:
    """YAML reads `cpu: 2` as a number; Kubernetes takes it as it is written."""
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if isinstance(text, str) and not re.fullmatch(rf"(?=.*[1-9]){_AMOUNT}", text):
        raise ValueError(f"{text!r} is no quantity above 0; write 2, 500m or 3Gi")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    WithJsonSchema({"oneOf": [{"type": "string", "pattern": f"^{_AMOUNT}$"}, {"type": "integer", "minimum": 1}]}),
]
UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def amount(quantity: str) -> float:
    """What a quantity stands for, in cores or bytes. `ValueError` if it is none."""
    found = re.fullmatch(_AMOUNT, _quantity(quantity))
    assert found is not None
    return float(quantity.removesuffix(found[2] or "")) * UNITS.get(found[2], 1.0)


def require_below(request: str | None, limit: str | None, key: str, limit_key: str | None = None) -> None:
    """`ValueError` for a request, of `key`_request, that is above its limit, of `key` or `limit_key`: no pod is made of the two."""
    if request is not None and limit is not None and amount(request) > amount(limit):
        raise ValueError(
            f"{key}_request is {request} and {limit_key or key} {limit}: nobody may ask for more than may be taken; lower the one or raise the other"
        )


Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]  # RFC 1035 label
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Label = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", max_length=317)
]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*$")]

OWN_LABELS = (
    "app.kubernetes.io/",
    "rolecast.dev/",
    "training.kubeflow.org/",
    "trainer.kubeflow.org/",
    "sidecar.istio.io/",
    "kueue.x-k8s.io/",
)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Given(Closed):
    """Says what was given and nothing else, also that a key was given as null, which takes a default of ours away."""

    model_config = ConfigDict(alias_generator=to_camel)

    @model_serializer(mode="wrap")
    def _as_given(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        given = self.model_fields_set | {to_camel(name) for name in self.model_fields_set}
        return {key: value for key, value in handler(self).items() if key in given}

    @property
    def said(self) -> set[str]:
        """Names of the fields that were given, and not as null."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}

    def manifest(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


class Amounts(Closed):
    """What a pod of one container asks of its node and may take of it."""

    cpu: Quantity = "2"
    cpu_request: Quantity | None = None  # of a node that is shared with others; by default all of `cpu`
    memory: Quantity = "4Gi"
    memory_request: Quantity | None = None  # likewise; a pod that takes more than it asked for is among the first to be evicted
    disk_request: Quantity = "2Gi"  # of the node's disk, where scratch, logs, an agent's model and its index lie
    disk_limit: Quantity | None = None

    @model_validator(mode="after")
    def _asks_for_no_more_than_it_may_take(self) -> Amounts:
        require_below(self.cpu_request, self.cpu, "cpu")
        require_below(self.memory_request, self.memory, "memory")
        require_below(self.disk_request, self.disk_limit, "disk", "disk_limit")
        return self

    def resources(self, devices: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Of the container. Requests equal limits where nothing else is said."""
        amount = {"cpu": self.cpu, "memory": self.memory, **devices}
        limit = {"ephemeral-storage": self.disk_limit} if self.disk_limit else {}
        request = {
            "cpu": self.cpu_request or self.cpu,
            "memory": self.memory_request or self.memory,
            "ephemeral-storage": self.disk_request,
        }
        return {"requests": {**amount, **request}, "limits": {**amount, **limit}}


class Toleration(Closed):
    """As in a pod's spec."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = Field(None, alias="tolerationSeconds")

    @model_validator(mode="after")
    def _operator_fits(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("a toleration with operator Exists takes no value; remove it or use operator Equal")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("a toleration with operator Equal needs a key; name the taint's key or use operator Exists")
        return self

    def manifest(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)
