"""Evaluates a run's team and deploys it, if it is better than the one that is deployed."""

from collections.abc import Sequence
from typing import Any

from kfp import dsl

from rolecast.launching.overrides import Overrides
from rolecast_pipelines import components
from rolecast_pipelines.overrides import NOTHING
from rolecast_pipelines.parameters import RUN, Parameter, pipeline, placed
from rolecast_pipelines.place import JOB, Place

OWN = (
    Parameter("stage", "The stage whose team is to serve, usually the last of the run's schedule."),
    Parameter("service", "Spec of the agent's service as JSON: name, image and more, without kind, uri and stage."),
    Parameter("target", "kserve puts the InferenceService in place and waits; record keeps its manifest beside the run.", "kserve"),
    Parameter("margin", "Deploys where the 95 % interval of new - deployed lies above -margin.", 0.0, float),
    Parameter("questions", "Test questions that both must have answered, at least.", 100, int),
)


def make_evaluate_and_deploy(keys: Sequence[str] = (), overrides: Overrides = NOTHING) -> Any:
    """`keys`: the variables that hold the keys of the run's endpoints, see `Place.evaluating`."""

    def body(run: Any, stage: Any, service: Any, target: Any, margin: Any, questions: Any, **given: Any) -> None:
        place = Place.of(given, overrides)
        with dsl.ExitHandler(place.telling(components.conclude(place=run, runs="[]", execution=JOB)), name="Evaluate and deploy"):
            evaluated = place.evaluating(components.evaluate(run=run, stage=stage, execution=JOB), keys)
            decided = components.gate(
                run=run, stage=stage, evaluated=evaluated.outputs["Output"], service=service, target=target, margin=margin,
                questions=questions, execution=JOB,
            )  # fmt: skip
            with dsl.If(place.launching(decided).outputs["Output"] == "deploy", name="Better"):
                place.launching(components.deploy(run=run, stage=stage, service=service, target=target, execution=JOB))

    return pipeline(
        "rolecast-evaluate-and-deploy",
        "Evaluates a team on held-out questions, and deploys it if it is better than the one that is deployed.",
        [RUN, *OWN, *placed(overrides)],
        body,
    )
