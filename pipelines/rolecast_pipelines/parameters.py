"""Parameters of pipelines, each with the line that the UI shows of it. kfp reads them from a function's signature and docstring, so that
is what `pipeline` makes of them: no pipeline repeats the parameters that all have.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kfp import dsl

from rolecast.launching.fields import amount, require_below
from rolecast.launching.overrides import Overrides

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


def amounts(kind: str, does: str, cpu: tuple[str, str], memory: tuple[str, str]) -> tuple[Parameter, ...]:
    """What the step of a kind asks for, which a node must have free, and what it may take, where the node has it: requests and limits."""
    return (
        Parameter(f"{kind}_cpu_request", f"CPUs that the step asks for which {does}.", cpu[0]),
        Parameter(f"{kind}_cpu", f"CPUs that the step may take which {does}.", cpu[1]),
        Parameter(f"{kind}_memory_request", f"Memory that the step asks for which {does}.", memory[0]),
        Parameter(f"{kind}_memory", f"Memory that the step may take which {does}.", memory[1]),
    )


def amounts_given(given: Mapping[str, str]) -> dict[str, str]:
    """Requests and limits of the kinds of which some are given: one that is given alone is both, as with Kubernetes, but for a request below
    the limit that there is by default. `ValueError` for what is no quantity, and for a request above its limit."""
    defaults = {parameter.name: parameter.default for parameter in PLACE}
    found: dict[str, str] = {}
    for limit_name in defaults:
        name = f"{limit_name}_request"
        if name not in defaults or not {name, limit_name} & set(given):
            continue
        request = given.get(name, given.get(limit_name, ""))
        limit = given.get(limit_name, max(request, defaults[limit_name], key=amount))
        require_below(request, limit, limit_name)
        found |= {name: request, limit_name: limit}
    return found


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
    *amounts("control", "launches, reports, decides or deploys", ("50m", "1"), ("256Mi", "1Gi")),
    *amounts("index", "builds an index", ("300m", "4"), ("1Gi", "4Gi")),
    *amounts("evaluation", "evaluates (see `rolecast plan`)", ("300m", "4"), ("1Gi", "4Gi")),
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


def placed(overrides: Overrides) -> tuple[Parameter, ...]:
    """`PLACE`, with the overrides' nodes as the default."""
    return tuple(replace(one, default=overrides.node_selector) if one.name == "node_selector" else one for one in PLACE)


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
