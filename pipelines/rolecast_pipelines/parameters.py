"""Parameters of pipelines, each with the line that the UI shows of it. kfp reads them from a function's signature and docstring, so that
is what `pipeline` makes of them: no pipeline repeats the parameters that all have.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kfp import dsl

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """`says`: one line, in ASCII: kfp writes it in the encoding of the place where it compiles."""

    name: str
    says: str
    default: Any = REQUIRED
    kind: Any = str


CONTROL = "rolecast-control:dev"
RETRIEVER = "rolecast-retriever:dev"
ROLLOUT = "rolecast-rollout:dev"

RUN = Parameter("run", "Where the run lives: s3://bucket/prefix/NAME.")
CONFIG = Parameter("config", "The run's config as JSON, as `rolecast pipeline submit` sends it.")
LAUNCHING = (
    Parameter("launcher", "How training runs: pytorchjob and trainjob launch jobs, local trains inside the step, in an image that can.", "local"),
    Parameter("job", "Spec of the training jobs as JSON, without run, stage and kind.", "{}"),
)  # fmt: skip
# Where steps run, of every pipeline.
PLACE = (
    Parameter("image", "Image of the steps that launch, report, decide and deploy: control.", CONTROL),
    Parameter("retriever_image", "Image of the step that builds an index: retriever.", RETRIEVER),
    Parameter("rollout_image", "Image of the steps that evaluate: rollout.", ROLLOUT),
    Parameter("control_cpu", "CPUs of a step in the control image; it mostly waits.", "250m"),
    Parameter("control_memory", "Memory of a step in the control image.", "1Gi"),
    Parameter("index_cpu", "CPUs of the step that builds an index.", "1"),
    Parameter("index_memory", "Memory of the step that builds an index.", "4Gi"),
    Parameter("evaluation_cpu", "CPUs of a step that evaluates.", "1"),
    Parameter("evaluation_memory", "Memory of a step that evaluates; see `rolecast plan`.", "4Gi"),
    Parameter("evaluation_gpus", "NVIDIA GPUs of a step that evaluates.", "0"),
    Parameter("node_selector", "Labels of the nodes that steps may run on, as JSON.", {}, dict),
    Parameter("tolerations", "Tolerations of the steps' pods, as a JSON list in a pod's form.", [], list),
    Parameter("pull_secret", "Name of the Secret that the images are pulled with; it need not exist where they need none.", "rolecast-pull"),
    Parameter("s3_secret", "Name of the Secret with the store's keys; it need not exist where pods have an identity.", "rolecast-s3"),
    Parameter("s3_ca", "Name of the ConfigMap with key ca.crt of the store's private authority, if it has one.", "rolecast-s3-ca"),
    Parameter("externals_secret", "Name of the Secret with the keys of endpoints that roles speak through.", "rolecast-externals"),
    Parameter("auth_secret", "Name of the Secret whose key `token` retriever and judge are shown, if they ask for one.", "rolecast-auth"),
    Parameter("notify_secret", "Name of the Secret whose key `url` is told how the pipeline ended, if it exists.", "rolecast-notify"),
    Parameter("endpoints", "Name of the ConfigMap that says where services are.", "rolecast-endpoints"),
)  # fmt: skip


def pipeline(name: str, description: str, parameters: Sequence[Parameter], body: Callable[..., None]) -> Any:
    """A kfp pipeline that calls `body` with its parameters, in their order with those first that must be given."""

    ordered = sorted(parameters, key=lambda parameter: parameter.default is not REQUIRED)

    def compiled(*given: Any) -> None:
        body(**{parameter.name: value for parameter, value in zip(ordered, given, strict=True)})

    compiled.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=p.default, annotation=p.kind) for p in ordered]
    )
    lines = [f"    {parameter.name}: {parameter.says}" for parameter in ordered]
    compiled.__doc__ = "\n".join([description, "", "Args:", *lines])
    return dsl.pipeline(name=name, description=description)(compiled)
