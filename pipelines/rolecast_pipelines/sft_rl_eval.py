"""SFT → RL → evaluation → report: the whole job as one pipeline of coarse tasks."""

from kfp import dsl

from rolecast_pipelines import components


def _step(task: dsl.PipelineTask, image: str) -> dsl.PipelineTask:
    """Nothing is cached: a step finds finished work by its committed artifacts, which a cache cannot verify."""
    return task.set_container_image(image).set_caching_options(False)


@dsl.pipeline(name="rolecast-sft-rl-eval", description="Trains a team of search roles: SFT, RL, held-out evaluation of both, report.")
def sft_rl_eval(run: str, config: str, image: str = components.IMAGE) -> None:
    """`run`: where the run lives. `config`: a run's config as JSON. `image`: what every step runs in."""
    prepared = _step(components.prepare(run=run, config=config), image)
    sft = _step(components.train(run=prepared.output, stage="sft"), image)
    sft_result = _step(components.evaluate(run=sft.output, stage="sft"), image)
    rl = _step(components.train(run=sft.output, stage="rl").after(sft_result), image)
    rl_result = _step(components.evaluate(run=rl.output, stage="rl"), image)
    _step(components.report(run=rl.output, results=[sft_result.outputs["Output"], rl_result.outputs["Output"]]), image)
