"""One component per stage. Each body only calls the stage, which is the same code that the command line runs.

The image is a parameter of the pipeline (`set_container_image`); the name here is what a step runs in when none is set.
"""

from kfp import dsl

IMAGE = "rolecast/control:dev"


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def prepare(run: str, config: str) -> str:
    from rolecast.stages import tasks

    return tasks.prepare(run, config)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(run: str, stage: str) -> str:
    from rolecast.stages import tasks

    return tasks.train(run, stage)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(run: str, stage: str, metrics: dsl.Output[dsl.Metrics]) -> str:
    from rolecast.stages import tasks

    return tasks.evaluate(run, stage, metrics)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def report(run: str, results: list[str], page: dsl.Output[dsl.HTML]) -> str:
    from rolecast.stages import tasks

    return tasks.report(run, page.path)
