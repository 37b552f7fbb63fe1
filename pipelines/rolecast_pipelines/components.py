"""One component per stage. Each body only calls the stage, which is the same code that the command line runs.

Images are parameters of the pipeline (`set_container_image`); the names here are what a step runs in when none is set. `execution` is
the pipeline's, under which a step records how it ended.
"""

from kfp import dsl

from rolecast_pipelines.parameters import CONTROL, RETRIEVER, ROLLOUT


@dsl.component(base_image=RETRIEVER, install_kfp_package=False)
def prepare(run: str, config: str, schedule: str, execution: str) -> str:
    from rolecast.stages import tasks

    return tasks.prepare(run, config, schedule, execution)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def train(run: str, stage: str, kind: str, launcher: str, job: str, execution: str, notes: dsl.Output[dsl.Markdown]) -> str:
    from rolecast.stages import tasks

    return tasks.train(run, stage, kind, launcher, job, notes.path, execution)


@dsl.component(base_image=ROLLOUT, install_kfp_package=False)
def evaluate(
    run: str, stage: str, execution: str, metrics: dsl.Output[dsl.Metrics], result: dsl.Output[dsl.Artifact],
    notes: dsl.Output[dsl.Markdown],
) -> str:  # fmt: skip
    from rolecast.stages import tasks

    return tasks.evaluate(run, stage, metrics, result.path, notes.path, execution)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def report(run: str, results: list[str], execution: str, page: dsl.Output[dsl.HTML], notes: dsl.Output[dsl.Markdown]) -> str:
    from rolecast.stages import tasks

    return tasks.report(run, page.path, notes.path, execution)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def compare(
    out: str, members: str, reports: list[str], execution: str, page: dsl.Output[dsl.HTML], numbers: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics], notes: dsl.Output[dsl.Markdown],
) -> str:  # fmt: skip
    from rolecast.stages import tasks

    return tasks.compare(out, members, page.path, numbers.path, metrics, notes.path, execution)


@dsl.component(base_image=RETRIEVER, install_kfp_package=False)
def index(
    out: str, corpus: str, kind: str, encoder: str, execution: str, metrics: dsl.Output[dsl.Metrics], notes: dsl.Output[dsl.Markdown]
) -> str:
    from rolecast.stages import tasks

    return tasks.index(out, corpus, kind, encoder, metrics, notes.path, execution)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def gate(
    run: str, stage: str, evaluated: str, service: str, target: str, margin: float, questions: int, execution: str,
    metrics: dsl.Output[dsl.Metrics], notes: dsl.Output[dsl.Markdown],
) -> str:  # fmt: skip
    from rolecast.stages import tasks

    return tasks.gate(run, stage, service, target, margin, questions, metrics, notes.path, execution)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def deploy(run: str, stage: str, service: str, target: str, execution: str, notes: dsl.Output[dsl.Markdown]) -> str:
    from rolecast.stages import tasks

    return tasks.deploy(run, stage, service, target, notes.path, execution)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def conclude(place: str, runs: str, execution: str, status: dsl.PipelineTaskFinalStatus, notes: dsl.Output[dsl.Markdown]) -> str:
    from rolecast.stages import tasks

    return tasks.conclude(place, status.state, status.error_message or "", notes.path, execution, runs)
