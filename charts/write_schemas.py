"""Writes values.schema.json of every chart: `python charts/write_schemas.py`.

The set of overrides is the model that jobs and InferenceServices read (`rolecast.launching.overrides`), so that one block of YAML fits
all of them. JSON schema has no way to share definitions between charts that Helm follows, so they are shared here. Each part's chart
checks its own values. The umbrella checks `global` and, less what is required, every part's values too, so that a wrong key is
refused while its part is off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rolecast.launching.overrides import SECRET_VARIABLE, Overrides

CHART = Path(__file__).parent / "rolecast"
Schema = dict[str, Any]


def closed(properties: Schema, required: tuple[str, ...] = (), **more: Any) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": list(required)} if required else {}) | more


def ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def text(pattern: str, **more: Any) -> Schema:
    return {"type": "string", "pattern": pattern} | more


def count(minimum: int, maximum: int | None = None) -> Schema:
    return {"type": "integer", "minimum": minimum} | ({} if maximum is None else {"maximum": maximum})


def labels(of: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$"}, "additionalProperties": of}


BOOL: Schema = {"type": "boolean"}
NAME = text("^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", maxLength=253)
OPTIONAL_NAME = text("^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", maxLength=253)
URL = "https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?"
BUCKET = "s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]"
PATHS = "(/[-A-Za-z0-9_.=]+)*"

DEFINITIONS: Schema = {
    "quantity": {"oneOf": [text("^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"), {"type": "integer", "minimum": 0}]},
    "size": text("^[1-9][0-9]*(M|G|T|Mi|Gi|Ti)$"),
    "amounts": closed(
        {name: ref("quantity") for name in ("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu")},
        patternProperties={"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$": ref("quantity")},  # GPUs of others, slices of one
    ),
    "resources": closed({"requests": ref("amounts"), "limits": ref("amounts")}),
    "image": closed({"digest": text("^(sha256:[0-9a-f]{64})?$")}),
    "device": {"enum": ["", "cpu", "cuda"]},
    "nodeSelector": labels({"type": "string"}),
    "tolerations": array(
        closed(
            {
                "key": {"type": "string"},
                "operator": {"enum": ["Exists", "Equal"]},
                "value": {"type": "string"},
                "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "tolerationSeconds": count(0),
            }
        )
    ),
    # Names that carry secrets are refused here: they come from an existing Secret.
    "env": {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Z_][A-Z0-9_]*$", "not": {"pattern": SECRET_VARIABLE}},
        "additionalProperties": {"type": "string"},
    },
    "selector": closed({"matchLabels": labels({"type": "string"})}),
    "peers": array(
        closed(
            {
                "namespaceSelector": ref("selector"),
                "podSelector": ref("selector"),
                "ipBlock": closed({"cidr": text("^[0-9a-fA-F.:]+/[0-9]{1,3}$"), "except": array({"type": "string"})}, ("cidr",)),
            },
            minProperties=1,
        )
    ),
    "ports": {"type": "array", "items": count(1, 65535), "uniqueItems": True},
    "flow": closed({"to": ref("peers"), "ports": ref("ports")}),
    "autoscaling": closed({"enabled": BOOL, "minReplicas": count(1), "maxReplicas": count(1), "cpu": count(1, 100)}),
    "serviceAccount": closed({"annotations": labels({"type": "string"})}, ("annotations",)),
}


def overrides() -> Schema:
    """Definitions of the model's parts; its own is `Overrides`."""
    schema = Overrides.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    parts: Schema = schema.pop("$defs")
    return {name: without_prose(part) for name, part in (parts | {"Overrides": schema}).items()}


def without_prose(schema: Any, named: bool = False) -> Any:
    """Helm reads neither titles nor docstrings, and a default of the model's is none of the chart's. A mapping whose keys have a pattern
    takes no others. `named`: these keys are properties."""
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if not named and "patternProperties" in schema:
        schema = {"additionalProperties": False} | schema
    return {
        key: without_prose(value, key in ("properties", "patternProperties"))
        for key, value in schema.items()
        if named or key not in ("default", "title", "description")
    }


DEFINITIONS |= overrides()

MONITORING = closed(
    {
        "serviceMonitor": BOOL,
        "rules": BOOL,
        "dashboard": BOOL,
        "labels": labels({"type": "string"}),
        "interval": text("^[1-9][0-9]*(s|m)$"),
        "runbooks": text("^(https?://\\S+)?$"),
    },
    ("serviceMonitor", "rules", "dashboard", "labels", "interval", "runbooks"),
    **{"if": {"properties": {"rules": {"const": True}}}, "then": {"properties": {"runbooks": {"minLength": 1}}}},
)

GLOBAL = closed(
    {
        "image": closed(
            {
                "registry": text("^[a-zA-Z0-9][-a-zA-Z0-9.:]*(/[-a-z0-9._]+)*$"),
                "tag": text("^([A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?$", **{"not": {"const": "latest"}}),
                "pullPolicy": {"enum": ["IfNotPresent", "Always", "Never"]},
                "pullSecrets": array(NAME),
            },
            ("registry", "tag", "pullPolicy", "pullSecrets"),
        ),
        "device": {"enum": ["cpu", "cuda"]},
        "s3": closed(
            {
                "endpoint": text(f"^{URL}$"),
                "region": text("^[a-z0-9-]+$"),
                "store": text(f"^{BUCKET}{PATHS}$"),
                "credentials": {"enum": ["secret", "cloud", "token"]},
                "existingSecret": OPTIONAL_NAME,
                "token": closed(
                    {"audience": text("^\\S+$"), "roleArn": text("^(arn:\\S+)?$"), "stsEndpoint": text(f"^({URL}{PATHS})?$")},
                    ("audience", "roleArn", "stsEndpoint"),
                ),
                "caConfigMap": OPTIONAL_NAME,
            },
            ("endpoint", "region", "store", "credentials", "existingSecret", "token", "caConfigMap"),
            **{
                "if": {"properties": {"credentials": {"const": "secret"}}},
                "then": {"properties": {"existingSecret": {"minLength": 1}}},
            },
        ),
        "serviceAccount": ref("serviceAccount"),
        "overrides": ref("Overrides"),
        "rotation": {"type": "string"},
        "auth": closed({"existingSecret": OPTIONAL_NAME}, ("existingSecret",)),
        "externals": closed(
            {
                "existingSecret": OPTIONAL_NAME,
                "keys": {"type": "array", "items": text("^[A-Z_][A-Z0-9_]*$"), "uniqueItems": True},
                "to": ref("peers"),
                "ports": ref("ports"),
            },
            ("existingSecret", "keys", "to", "ports"),
            **{
                "if": {"properties": {"keys": {"minItems": 1}}},
                "then": {"properties": {"existingSecret": {"minLength": 1}}},
            },
        ),
        "endpoints": closed(
            {
                "configMap": NAME,
                "retriever": text(f"^(none|{URL}{PATHS})?$"),
                "judge": text(f"^(none|{URL}{PATHS})?$"),
                "coordinatorPort": count(1024, 65535),
                "coordinators": text(f"^({BUCKET}{PATHS})?$"),
            },
            ("configMap", "retriever", "judge", "coordinatorPort", "coordinators"),
        ),
        "networkPolicy": closed(
            {
                "enabled": BOOL,
                "dns": ref("flow"),
                "s3": ref("flow"),
                "sts": ref("flow"),
                "apiServer": ref("flow"),
                "otlp": ref("flow"),
                "notify": ref("flow"),
                "pipelines": closed({"from": ref("peers")}, ("from",)),
                "prometheus": closed({"from": ref("peers")}, ("from",)),
            },
            ("enabled", "dns", "s3", "sts", "apiServer", "otlp", "notify", "pipelines", "prometheus"),
        ),
        "tracing": closed({"endpoint": text(f"^({URL}{PATHS})?$")}, ("endpoint",)),
        "monitoring": MONITORING,
    },
    (
        "image",
        "device",
        "s3",
        "serviceAccount",
        "overrides",
        "rotation",
        "auth",
        "externals",
        "endpoints",
        "networkPolicy",
        "tracing",
        "monitoring",
    ),
)


def pod(*scratch: str) -> Schema:
    """What every part with a pod template has."""
    return {
        "enabled": BOOL,
        "replicas": count(0),
        "image": ref("image"),
        "resources": ref("resources"),
        "nodeSelector": ref("nodeSelector"),
        "tolerations": ref("tolerations"),
        "env": ref("env"),
        "overrides": ref("Overrides"),
        "serviceAccount": ref("serviceAccount"),
        "scratch": closed({name: ref("size") for name in ("tmp", "work", *scratch)}, ("tmp", "work")),
        "startupSeconds": count(10),
        "terminationGraceSeconds": count(30),
    }


RUNTIME_CLASS: Schema = {"device": ref("device"), "runtimeClassName": OPTIONAL_NAME}
CIDRS: Schema = array(text("^[0-9a-fA-F.:]+/[0-9]{1,3}$"))
LIVE = closed(
    {
        "engine": {"enum": ["", "serper", "jina", "google", "searxng", "opensearch"]},
        "url": text(f"^({URL}{PATHS})?$"),
        "collection": text("^[A-Za-z0-9_.:*,-]*$"),
        "fields": closed({name: text("^[A-Za-z_][A-Za-z0-9_.]*$") for name in ("title", "text")}, ("title", "text")),
        "existingSecret": OPTIONAL_NAME,
        "budget": count(0),
        "cacheSeconds": count(0),
        "record": text(f"^({BUCKET}{PATHS})?$"),
        "to": ref("peers"),
        "ports": ref("ports"),
        "pages": closed({"enabled": BOOL, "except": CIDRS, "except6": CIDRS}, ("enabled", "except", "except6")),
    },
    ("engine", "url", "collection", "fields", "existingSecret", "budget", "cacheSeconds", "record", "to", "ports", "pages"),
    allOf=[
        {"if": {"properties": {"engine": {"enum": engines}}}, "then": {"properties": needed}}
        for engines, needed in (
            (["serper", "jina", "google"], {"existingSecret": {"minLength": 1}, "budget": {"minimum": 1}}),
            (["searxng", "opensearch"], {"url": {"minLength": 1}}),
            (["google", "opensearch"], {"collection": {"minLength": 1}}),
        )
    ],
)
PARTS: dict[str, Schema] = {
    "retriever": closed(
        pod()
        | RUNTIME_CLASS
        | {
            "index": text(f"^({BUCKET}{PATHS})?$"),
            "swapsFrom": text(f"^({BUCKET}{PATHS})?$"),
            "reranker": closed(
                {"path": text("^(/[-A-Za-z0-9_.]+)*$"), "form": {"enum": ["cross_encoder", "yes_no"]}, "depth": count(1)},
                ("path", "form", "depth"),
            ),
            "live": LIVE,
            "autoscaling": ref("autoscaling"),
            "allowFrom": ref("peers"),
        },
        (*pod(), "index", "swapsFrom", "reranker", "live", "autoscaling"),
        **{
            "if": {"properties": {"live": {"properties": {"engine": {"const": ""}}}}},
            "then": {"properties": {"index": {"minLength": 1}}},
            "else": {"properties": {"index": {"maxLength": 0}, "swapsFrom": {"maxLength": 0}}},
        },
    ),
    "judge": closed(
        pod()
        | {
            "backend": {"enum": ["lexical", "openai", "ensemble"]},
            "cache": text(f"^({BUCKET}{PATHS})?$"),
            "openai": closed(
                {
                    "url": text(f"^({URL}{PATHS})?$"),
                    "model": {"type": "string"},
                    "existingSecret": OPTIONAL_NAME,
                    "to": ref("peers"),
                    "ports": ref("ports"),
                },
                ("url", "model", "existingSecret", "to", "ports"),
            ),
            "autoscaling": ref("autoscaling"),
            "allowFrom": ref("peers"),
        },
        (*pod(), "backend", "cache", "autoscaling"),
        **{
            "if": {"properties": {"backend": {"enum": ["openai", "ensemble"]}}},
            "then": {"properties": {"openai": {"properties": {"url": {"minLength": 1}, "model": {"minLength": 1}}}}},
        },
    ),
    "rollout": closed(
        pod("shm")
        | RUNTIME_CLASS
        | {
            "release": closed({"existingSecret": NAME}, ("existingSecret",)),
            "queue": OPTIONAL_NAME,
            "scaling": closed(
                {
                    "enabled": BOOL,
                    "prometheus": text(f"^({URL}{PATHS})?$"),
                    "groupsPerWorker": count(1),
                    "minReplicas": count(0),
                    "maxReplicas": count(1),
                    "cooldownSeconds": count(0),
                },
                ("enabled", "prometheus", "groupsPerWorker", "minReplicas", "maxReplicas", "cooldownSeconds"),
                **{
                    "if": {"properties": {"enabled": {"const": True}}},
                    "then": {"properties": {"prometheus": {"minLength": 1}}},
                },
            ),
        },
        (*pod(), "release", "queue", "scaling"),
    ),
    "learner": closed(
        {
            "enabled": BOOL,
            "launcher": closed(
                {"kubeflowPipelines": BOOL, "subjects": array(closed({"name": NAME, "namespace": NAME}, ("name", "namespace")))},
                ("kubeflowPipelines", "subjects"),
            ),
            "serviceAccount": ref("serviceAccount"),
        },
        ("enabled", "launcher", "serviceAccount"),
    ),
    "agent": closed(
        pod()
        | {
            "server": {"enum": ["deployment", "kserve"]},
            "run": text(f"^({BUCKET}{PATHS})?$"),
            "allowFrom": ref("peers"),
            "predictor": ref("flow"),
            "autoscaling": ref("autoscaling"),
        },
        (*pod(), "server", "run", "autoscaling"),
        **{"if": {"properties": {"server": {"const": "deployment"}}}, "then": {"properties": {"run": {"minLength": 1}}}},
    ),
    "common": closed({}),
}


def optional(schema: Any) -> Any:
    """The same without what must be there: a part that is off brings no defaults."""
    if isinstance(schema, dict):
        return {key: optional(value) for key, value in schema.items() if key not in ("required", "if", "then", "else", "allOf")}
    return [optional(item) for item in schema] if isinstance(schema, list) else schema


def references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"].rsplit("/", 1)[-1]} if "$ref" in schema else set()
        return own.union(*(references(value) for value in schema.values()))
    return set().union(*(references(item) for item in schema)) if isinstance(schema, list) else set()


def document(title: str, schema: Schema) -> str:
    used: set[str] = set()
    found = references(schema)
    while found - used:
        used |= found
        found = set().union(*(references(DEFINITIONS[name]) for name in used))
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, "$comment": "written by charts/write_schemas.py"}
    return json.dumps(head | schema | {"definitions": {name: DEFINITIONS[name] for name in sorted(used)}}, indent=1) + "\n"


def documents() -> dict[Path, str]:
    # Helm copies `global` into every part's values. It is checked once, or a fault would be told a dozen times.
    parts = {name: schema | {"properties": {"global": True} | schema["properties"]} for name, schema in PARTS.items()}
    written = {CHART / "charts" / name / "values.schema.json": document(f"Values of {name}", schema) for name, schema in parts.items()}
    umbrella = closed({"global": GLOBAL} | {name: optional(schema) for name, schema in parts.items()}, ("global",))
    return written | {CHART / "values.schema.json": document("Values of rolecast", umbrella)}


if __name__ == "__main__":
    for path, content in documents().items():
        path.write_text(content)
