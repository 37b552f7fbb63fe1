"""Walks a rendered resource beside the SDK's own models, which name every field that the API server would accept.

The SDKs drop unknown keys without a word, so a typo deep in a custom resource reaches the cluster, and there it is dropped too.
Two generations of generated code are read: `openapi_types`/`attribute_map` of swagger models, and pydantic fields with aliases.
"""

from __future__ import annotations

import re
import types
import typing
from typing import Any

import kserve.models
import kubeflow.training.models
import kubernetes.client.models
from kubeflow_trainer_api import models as trainer_models
from pydantic import BaseModel

SWAGGER = (kubeflow.training.models, kserve.models, kubernetes.client.models)
ROOTS: dict[str, Any] = {
    "PyTorchJob": kubeflow.training.models.KubeflowOrgV1PyTorchJob,
    "InferenceService": kserve.models.V1beta1InferenceService,
    "Service": kubernetes.client.models.V1Service,
    "TrainJob": trainer_models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": trainer_models.TrainerV1alpha1TrainingRuntime,
}
# KServe's generated code refers to Kubernetes' types by names that no package defines.
RENAMED = {"K8sIoApiAppsV1DeploymentStrategy": "V1DeploymentStrategy"}
OPAQUE = {"V1beta1MetricQuantity"}  # a quantity: a string


def unknown_fields(resource: dict[str, Any]) -> list[str]:
    """Paths of fields that the models do not have, or whose shape (mapping, list, scalar) is another."""
    return list(_walk(resource, ROOTS[resource["kind"]], resource["kind"]))


def _walk(value: Any, model: Any, path: str) -> typing.Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: a mapping is expected"
        return
    fields = _fields(model)
    for key, part in value.items():
        if key not in fields:
            yield f"{path}.{key}: no such field of {model.__name__}"
        else:
            yield from _value(part, fields[key], f"{path}.{key}")


def _value(value: Any, kind: Any, path: str) -> typing.Iterator[str]:
    shape, inner = _shape(kind)
    if shape == "list":
        if not isinstance(value, list):
            yield f"{path}: a list is expected"
            return
        for number, item in enumerate(value):
            yield from _value(item, inner, f"{path}[{number}]")
    elif shape == "dict":
        if not isinstance(value, dict):
            yield f"{path}: a mapping is expected"
            return
        for key, item in value.items():
            yield from _value(item, inner, f"{path}[{key}]")
    elif shape == "model":
        yield from _walk(value, inner, path)
    elif shape == "scalar" and (isinstance(value, dict | list) or not _scalar_fits(value, inner)):
        yield f"{path}: {value!r} is no {inner}"


def _scalar_fits(value: Any, kind: str) -> bool:
    expected = {"str": str, "int": int, "bool": bool}.get(kind)
    return expected is None or (isinstance(value, expected) and (expected is bool) == isinstance(value, bool))


def _fields(model: Any) -> dict[str, Any]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {json: model.openapi_types[name] for name, json in model.attribute_map.items()}


def _shape(kind: Any) -> tuple[str, Any]:
    return _swagger_shape(kind) if isinstance(kind, str) else _pydantic_shape(kind)


def _swagger_shape(kind: str) -> tuple[str, Any]:
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        return "list", match[1]
    if match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return "dict", match[1]
    if kind in ("str", "int", "bool", "float", "datetime"):
        return "scalar", kind
    if kind == "object" or kind in OPAQUE:
        return "any", None
    for package in SWAGGER:
        if model := getattr(package, RENAMED.get(kind, kind), None):
            return "model", model
    raise LookupError(f"no SDK package defines {kind}: add it to RENAMED")


def _pydantic_shape(kind: Any) -> tuple[str, Any]:
    origin, arguments = typing.get_origin(kind), [part for part in typing.get_args(kind) if part is not types.NoneType]
    if origin in (typing.Union, types.UnionType):
        return _pydantic_shape(arguments[0])
    if origin is typing.Annotated:
        return _pydantic_shape(arguments[0])
    if origin is list:
        return "list", arguments[0]
    if origin is dict:
        return "dict", arguments[1]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return ("any", None) if "actual_instance" in kind.model_fields else ("model", kind)  # a choice, as of int or string
    return ("scalar", kind.__name__) if isinstance(kind, type) and kind in (str, int, bool) else ("any", None)
