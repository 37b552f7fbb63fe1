"""One component per stage. Each body only calls the stage, which is the same code that the command line runs.

Images are parameters of the pipeline (`set_container_image`); the names here are what a step runs in when none is set.
"""

from kfp import dsl

CONTROL = "rolecast-control:dev"
RETRIEVER = "rolecast-retriever:dev"  # builds the index
ROLLOUT = "rolecast-rollout:dev"  # plays the evaluation's episodes


@dsl.component(base_image=RETRIEVER, install_kfp_package=False)
def prepare(run: str, config: str, schedule: str) -> str:
    from rolecast.stages import tasks

    return tasks.prepare(run, config, schedule)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def train(run: str, stage: str, kind: str, launcher: str, job: str, notes: dsl.Output[dsl.Markdown]) -> str:
    from rolecast.stages import tasks

    return tasks.train(run, stage, kind, launcher, job, notes.path)


@dsl.component(base_image=ROLLOUT, install_kfp_package=False)
def evaluate(run: str, stage: str, metrics: dsl.Output[dsl.Metrics], result: dsl.Output[dsl.Artifact]) -> str:
    from rolecast.stages import tasks

    return tasks.evaluate(run, stage, metrics, result.path)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def report(run: str, results: list[str], page: dsl.Output[dsl.HTML]) -> str:
    from rolecast.stages import tasks

    return tasks.report(run, page.path)


@dsl.component(base_image=CONTROL, install_kfp_package=False)
def compare(out: str, members: str, reports: list[str], page: dsl.Output[dsl.HTML], numbers: dsl.Output[dsl.Artifact]) -> str:
    from rolecast.stages import tasks

    return tasks.compare(out, members, page.path, numbers.path)
