"""KServe InferenceServices in Standard mode: the agent, and a vLLM predictor for a trained model.

Storage. The agent opens its run by URI with the store's own client. The predictor's model is fetched by KServe's storage
initializer, which finds credentials in the Secret that `serving.kserve.io/storageSecretName` names. Besides AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY that Secret carries the endpoint as annotations of its own: `serving.kserve.io/s3-endpoint` (host:port, no
scheme), `serving.kserve.io/s3-usehttps` ("0" or "1"), `serving.kserve.io/s3-region`, `serving.kserve.io/s3-useanoncredential`.

Canaries. Standard mode has no traffic split inside one InferenceService: a canary is a second service (`track: canary`), and the
gateway divides the traffic between the two.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from rolecast.errors import InputError
from rolecast.launching import overrides, s3_access
from rolecast.launching.fields import Amounts, Closed, Label, LabelKey, Name, Quantity, Toleration, Variable
from rolecast.launching.learner_pod import CONTAINER_SECURITY, POD_SECURITY, Manifest
from rolecast.launching.overrides import Overrides
from rolecast.launching.s3_access import S3Identity
from rolecast.launching.spec import MAX_NAME, Image, StageName, require_externals_secret, validated
from rolecast.service.tokens import TOKEN_FILE, TOKENS_FILE

PORT = 8080
AUTH = "/etc/rolecast/auth"
GRACE_SECONDS = 60
ENDPOINT_SECONDS = 10  # until load balancers and proxies no longer send requests to a pod that is going
IMMUTABLE = re.compile(r"/[a-z][a-z0-9_]*/model/?$|/checkpoints/step-\d{6}/?$")


class QueueScaling(Closed):
    """KEDA adds a replica for every `target` waiting requests, which Prometheus counts. Utilisation of a GPU says nothing:
    a batching server is fully busy with one request and with a hundred."""

    prometheus: str = Field(pattern=r"^https?://[^\s]+$")
    target: int = Field(4, ge=1)
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(4, ge=1)

    @model_validator(mode="after")
    def _range(self) -> QueueScaling:
        if self.max_replicas <= self.min_replicas:
            raise ValueError("max_replicas must exceed min_replicas; for a fixed number of replicas leave scaling out and set replicas")
        return self


class ServingSpec(Amounts):
    """`agent`: `uri` is the run's, `stage` whose team it serves. `vllm`: `uri` is a committed model's."""

    kind: Literal["agent", "vllm"]
    uri: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")
    image: Image
    name: Name
    namespace: Name = "rolecast"
    track: Literal["stable", "canary"] = "stable"
    stage: StageName | None = None
    replicas: int = Field(1, ge=1)
    scaling: QueueScaling | None = None
    gpus: int = Field(0, ge=0)
    shm_size: Quantity = "2Gi"
    scratch_size: Quantity = "100Gi"  # of /work and of /tmp, at most
    start_seconds: int = Field(900, ge=30)  # for download and loading, before the pod counts as failed
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    service_account: Name | None = None
    endpoints: Name = "rolecast-endpoints"
    s3_secret: Name | None = "rolecast-s3"  # null: by the identity of the account
    s3_identity: S3Identity | None = None
    s3_ca: Name | None = None  # a ConfigMap with key `ca.crt`, of a private certificate authority
    auth_secret: Name | None = None  # agent: with keys `tokens`, which it takes, and `token`, which it shows to the retriever
    externals_secret: Name | None = None  # agent: with `externals_keys`, of the endpoints that roles speak through
    externals_keys: tuple[Variable, ...] = ()  # each becomes the variable of its name (a config's key_env)
    node_selector: dict[LabelKey, Label] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    max_model_len: int | None = Field(None, ge=1)  # vllm
    arguments: tuple[str, ...] = ()  # further ones of the server
    overrides: Overrides = Overrides()

    @model_validator(mode="before")
    @classmethod
    def _no_split(cls, values: Any) -> Any:
        if isinstance(values, dict) and {"canaryTrafficPercent", "canary_traffic_percent"} & set(values):
            raise ValueError(
                "canaryTrafficPercent works in Knative mode only: render a second service with track: canary and split the traffic at the gateway"
            )
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> ServingSpec:
        if self.kind == "vllm" and not IMMUTABLE.search(self.uri):
            raise ValueError(
                f"uri {self.uri} may change under a running service; name a committed model (…/sft/model, …/rl/model) or a checkpoint (…/checkpoints/step-NNNNNN)"
            )
        if self.kind == "vllm" and not self.gpus:
            raise ValueError("a vLLM predictor needs gpus: set it to the GPUs of one replica")
        if self.kind == "agent" and self.stage is None:
            raise ValueError("an agent needs stage: name the one whose team it serves, usually the last of the run's schedule")
        if self.kind == "vllm" and self.stage is not None:
            raise ValueError("stage is for kind agent; a predictor's model is the one that uri names")
        if self.kind == "agent" and self.max_model_len is not None:
            raise ValueError("max_model_len is for kind vllm; the agent takes it from the run's config")
        if self.kind == "vllm" and self.auth_secret:
            raise ValueError("auth_secret is for kind agent; a vLLM predictor is guarded at the gateway")
        if self.kind == "vllm" and self.externals_keys:
            raise ValueError("externals_keys are for kind agent; a predictor asks nobody")
        require_externals_secret(self.externals_keys, self.externals_secret)
        if any(argument.split("=")[0] == "--api-key" for argument in self.arguments):
            raise ValueError("arguments are visible to everyone who may list pods: --api-key is refused; guard the gateway instead")
        if len(self.name) > MAX_NAME - len("-canary"):
            raise ValueError(
                f"name has {len(self.name)} characters, but KServe adds suffixes and a canary has one: at most {MAX_NAME - len('-canary')}"
            )
        if self.scaling and self.replicas != 1:
            raise ValueError("replicas and scaling exclude each other; set scaling.min_replicas")
        return self

    @property
    def service_name(self) -> str:
        return self.name if self.track == "stable" else f"{self.name}-canary"


def read_agent(settings: Any, run: str, stage: str, source: str = "service") -> ServingSpec:
    """The agent of a run's stage, from the rest of its spec. `InputError` lists every fault with its key and `source`."""
    if not isinstance(settings, dict) or {"uri", "stage", "kind"} & set(settings):
        raise InputError(f"{source}: give a mapping with keys of an agent's spec, without kind, uri and stage, which the pipeline sets")
    return validated(ServingSpec, {**settings, "kind": "agent", "uri": run, "stage": stage}, source)


def render(spec: ServingSpec) -> Manifest:
    annotations = {
        "serving.kserve.io/deploymentMode": "Standard",
        "serving.kserve.io/autoscalerClass": "keda" if spec.scaling else "none",
    }
    if spec.kind == "vllm" and spec.s3_secret:
        annotations["serving.kserve.io/storageSecretName"] = spec.s3_secret
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": spec.service_name, "namespace": spec.namespace, "labels": _labels(spec), "annotations": annotations},
        "spec": {"predictor": _predictor(spec)},
    }


def _labels(spec: ServingSpec) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "rolecast",
        "app.kubernetes.io/instance": spec.service_name,
        "app.kubernetes.io/component": "agent" if spec.kind == "agent" else "predictor",
        "app.kubernetes.io/part-of": "rolecast",
        "app.kubernetes.io/managed-by": "rolecast-launcher",
        "rolecast.dev/track": spec.track,
    }


def _predictor(spec: ServingSpec) -> Manifest:
    predictor: Manifest = {
        "minReplicas": spec.scaling.min_replicas if spec.scaling else spec.replicas,
        "maxReplicas": spec.scaling.max_replicas if spec.scaling else spec.replicas,
        "labels": {**spec.overrides.labels, **_labels(spec)},
        "annotations": overrides.pod_annotations({}, spec.overrides),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": overrides.security(POD_SECURITY, spec.overrides.pod_security_context),
        "deploymentStrategy": _strategy(spec),
        "containers": [_container(spec)],
        "volumes": _volumes(spec),
        **overrides.placement(spec.overrides, spec.node_selector, spec.tolerations),
        **overrides.pod_fields(spec.overrides),
    }
    if not predictor["annotations"]:
        del predictor["annotations"]
    if spec.scaling:
        predictor["autoScaling"] = {"metrics": [_queue_metric(spec, spec.scaling)]}
    if spec.kind == "vllm":
        predictor["storageUris"] = [{"uri": spec.uri, "mountPath": "/mnt/models"}]
    if spec.service_account:
        predictor["serviceAccountName"] = spec.service_account
    if spec.image_pull_secrets:
        predictor["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    return predictor


def _strategy(spec: ServingSpec) -> Manifest:
    """A surge pod would wait for a GPU that the pod which it replaces still holds."""
    rolling = {"maxSurge": 0, "maxUnavailable": 1} if spec.gpus else {"maxSurge": 1, "maxUnavailable": 0}
    return {"type": "RollingUpdate", "rollingUpdate": rolling}


def _queue_metric(spec: ServingSpec, scaling: QueueScaling) -> Manifest:
    metric = "rolecast_agent_requests_waiting" if spec.kind == "agent" else "vllm:num_requests_waiting"
    pods = f'namespace="{spec.namespace}",pod=~"{spec.service_name}-predictor-.*"'
    return {
        "type": "External",
        "external": {
            "metric": {"backend": "prometheus", "serverAddress": scaling.prometheus, "query": f"sum({metric}{{{pods}}})"},
            "target": {"type": "AverageValue", "averageValue": str(scaling.target)},
        },
    }


def _container(spec: ServingSpec) -> Manifest:
    ready = "/readyz" if spec.kind == "agent" else "/health"
    alive = "/healthz" if spec.kind == "agent" else "/health"
    return {
        "name": "kserve-container",
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        **(_agent(spec) if spec.kind == "agent" else _vllm(spec)),
        **overrides.env_from(spec.overrides),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": spec.resources(overrides.devices(spec.gpus, spec.overrides)),
        "startupProbe": {**_probe(alive), "periodSeconds": 5, "failureThreshold": -(-spec.start_seconds // 5)},
        "readinessProbe": {**_probe(ready), "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**_probe(alive), "periodSeconds": 15, "failureThreshold": 4},
        # SIGTERM comes after the sleep; then the server takes no new requests and finishes those that it has.
        "lifecycle": {"preStop": {"sleep": {"seconds": ENDPOINT_SECONDS}}},
        "securityContext": overrides.security(CONTAINER_SECURITY, spec.overrides.security_context),
        "volumeMounts": _mounts(spec),
    }


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5}


def _agent(spec: ServingSpec) -> Manifest:
    env: list[Manifest] = [{"name": "ROLECAST_WORKDIR", "value": "/work"}]
    for key in ("ROLECAST_S3_ENDPOINT", "ROLECAST_S3_REGION", "ROLECAST_RETRIEVER_URL", "ROLECAST_TRACING", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        env.append({"name": key, "valueFrom": {"configMapKeyRef": {"name": spec.endpoints, "key": key, "optional": True}}})
    env += s3_access.env(spec)
    env += [{"name": key, "valueFrom": {"secretKeyRef": {"name": spec.externals_secret, "key": key}}} for key in spec.externals_keys]
    if spec.auth_secret:
        env += [{"name": TOKENS_FILE, "value": f"{AUTH}/tokens"}, {"name": TOKEN_FILE, "value": f"{AUTH}/token"}]
    return {
        "args": ["agent", "serve", spec.uri, "--stage", str(spec.stage), "--model-name", spec.name, "--port", str(PORT), *spec.arguments],
        "env": overrides.env(env, spec.overrides),
    }


def _vllm(spec: ServingSpec) -> Manifest:
    server = ["python", "-m", "vllm.entrypoints.openai.api_server"]
    arguments = [
        "--model=/mnt/models",
        f"--served-model-name={spec.name}",
        f"--port={PORT}",
        f"--tensor-parallel-size={spec.gpus}",
    ]
    if spec.max_model_len:
        arguments.append(f"--max-model-len={spec.max_model_len}")
    env: list[Manifest] = [
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        {"name": "VLLM_CACHE_ROOT", "value": "/tmp/vllm"},
    ]
    return {
        "command": server,
        "args": [*arguments, *spec.arguments],
        "env": overrides.env(env, spec.overrides),
    }


def _volumes(spec: ServingSpec) -> list[Manifest]:
    volumes: list[Manifest] = [{"name": name, "emptyDir": {"sizeLimit": spec.scratch_size}} for name in ("tmp", "work")]
    if spec.gpus:
        volumes.append({"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.shm_size}})
    if spec.auth_secret:
        volumes.append({"name": "auth", "secret": {"secretName": spec.auth_secret, "defaultMode": 0o440}})
    return overrides.volumes(volumes + (s3_access.volumes(spec) if spec.kind == "agent" else []), spec.overrides)


def _mounts(spec: ServingSpec) -> list[Manifest]:
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "work", "mountPath": "/work"}]
    if spec.gpus:
        mounts.append({"name": "dshm", "mountPath": "/dev/shm"})
    if spec.auth_secret:
        mounts.append({"name": "auth", "mountPath": AUTH, "readOnly": True})
    return overrides.mounts(mounts + (s3_access.mounts(spec) if spec.kind == "agent" else []), spec.overrides)
