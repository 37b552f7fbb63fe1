"""Which tests are to notice a fault of which file: folders and modules under tests/, the nearest first."""

from __future__ import annotations

LEARNER = ("unit/learner/test_wiring.py", "unit/learner/test_update.py", "unit/learner/test_batch.py", "unit/learner")
PACKING = ("unit/learner/test_forest.py", "unit/learner/test_packing.py", "unit/learner/test_compiled.py")
STAGES = ("unit/stages/test_trainer.py", "unit/stages/test_rl.py", "unit/stages/test_stage_settings.py")

# What faults are drawn from; the hand-written lists name two methods besides.
COVERING: dict[str, tuple[str, ...]] = {
    "credit.py": ("unit/test_credit.py", *LEARNER),
    "reduction.py": ("unit/test_reduction.py", *LEARNER),
    "losses.py": ("unit/test_losses.py", *LEARNER),
    "learner/batch.py": LEARNER,
    "learner/cut.py": ("unit/learner/test_forest.py", *LEARNER),
    "learner/forest.py": PACKING,
    "learner/packed.py": PACKING,
    "learner/terms.py": LEARNER,
    "learner/tally.py": LEARNER,
    "learner/step.py": LEARNER,
    "learner/learner.py": LEARNER,
    "learner/optimizer.py": ("unit/learner/test_optimizer.py", *LEARNER),
    "learner/backends.py": ("unit/learner/test_backends.py", *LEARNER, "unit/stages/test_rl.py"),
    "weights/forward.py": (*PACKING, "unit/weights"),
    "weights/logprobs.py": (*PACKING, "unit/weights"),
    "weights/folded.py": ("unit/weights/test_folded.py",),
    "weights/attention.py": (*PACKING, "unit/stages/test_agreement.py"),
    "weights/team.py": ("unit/weights", "unit/learner", "unit/stages/test_finished_team.py", "unit/stages/test_trainer.py"),
    "stages/rl.py": STAGES,
    "stages/rollout.py": ("unit/stages/test_rollout_stage.py",),
    "stages/sampling.py": ("unit/stages/test_sampling.py", "unit/stages/test_cast.py", *STAGES),
    "stages/evaluate.py": ("unit/stages/test_evaluate.py",),
    "stages/playing.py": ("unit/stages/test_playing.py",),
    "stages/sft.py": ("unit/stages/test_sft.py",),
    "identity.py": ("unit/test_identity.py", "unit/stages/test_run.py"),
    "stages/run.py": (
        "unit/stages/test_run.py",
        "unit/stages/test_environment.py",
        "unit/stages/test_inputs.py",
        "contract/test_run_in_store.py",
    ),
    "stages/environment.py": ("unit/stages/test_environment.py", "unit/stages/test_report_controls.py"),
    "stages/services.py": ("unit/stages/test_environment.py",),
    "stages/segments.py": ("unit/stages/test_segments.py", "unit/stages/test_trainer.py"),
    "stages/inputs.py": ("unit/stages/test_inputs.py",),
    "rollout/remote.py": ("unit/rollout/test_remote.py", "unit/stages/test_publish.py"),
    "rollout/engines/external.py": ("unit/rollout/test_external.py", "contract/test_engine.py"),
    "rollout/env.py": (
        "unit/rollout/test_env.py",
        "unit/rollout/test_collect.py",
        "unit/rollout/test_render.py",
        "unit/rollout/test_external.py",
        "unit/methods",
    ),
    "rollout/collect.py": ("unit/rollout/test_collect.py", "unit/rollout/test_worker.py", "unit/rollout", "unit/methods"),
    "rollout/scheduler.py": ("unit/rollout/test_play.py", "unit/rollout/test_scheduler.py", "unit/rollout"),
    "rollout/worker.py": ("unit/rollout/test_worker.py", "unit/rollout/test_rollouts.py"),
    "coordinator/leases.py": ("unit/coordinator", "unit/rollout/test_rollouts.py", "contract/test_coordinator.py"),
    "coordinator/checks.py": ("unit/coordinator",),
}
METHODS: dict[str, tuple[str, ...]] = {
    "methods/decor/method.py": ("unit/methods/test_decor.py",),
    "methods/coda/method.py": ("unit/methods/test_coda.py", "unit/methods/test_coda_rewards.py", "unit/methods/test_coda_credit.py"),
    "methods/coda/rewards.py": ("unit/methods/test_coda_rewards.py",),
    "methods/search_r1/method.py": ("unit/methods/test_search_r1.py",),
}


# Of what only jobs of several processes run; minutes each.
SHARDED = ("e2e/test_sharded.py", "e2e/test_sharded_slots.py")
SLOW: dict[str, tuple[str, ...]] = {
    "learner/backends.py": ("unit/learner/test_deepspeed_config.py", *SHARDED),
    "learner/optimizer.py": ("unit/learner/test_optimizer.py", *SHARDED),
}


def covering(file: str, slow: bool = False) -> list[str]:
    return [f"tests/{place}" for place in (SLOW if slow else COVERING | METHODS)[file]]
