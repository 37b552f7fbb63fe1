"""CoDA's credit, loss and figures against numbers worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from coda_episodes import ANSWER, DIRECT, INVALID, MONOLITH, NESTED, PLANNER, SCRIPT, coda, episode, finished, worked
from scripted import MENTOR

from rolecast.credit import advantages, group_advantages
from rolecast.folds import TOKEN_MEAN, mean, total
from rolecast.learner.batch import action_lengths, make_batch
from rolecast.learner.cut import cut
from rolecast.methods.coda import Coda, CodaConfig
from rolecast.reduction import item_weights
from rolecast.rollout.render import Renderer
from rolecast.types import Action, ImitationTerm, KlTerm, PolicyTerm

# Credit


def test_one_unit_per_rollout_over_the_actions_of_all_its_threads(renderer: Renderer) -> None:
    t, _ = episode(renderer, SCRIPT)
    [unit] = coda().credit([t])
    assert unit.actions == tuple(action.id for thread in t.threads for action in thread.actions)
    assert len(unit.actions) == 3 + 2 + 2
    assert (unit.baseline, unit.group, unit.rollout, unit.objective) == (t.group, t.group, t.id, "peco")


def test_equation_2() -> None:
    """Rewards 5.5, 3 and −3: mean 1.8333, deviation √((3.6667² + 1.1667² + 4.8333²)/3) = 3.5668."""
    group = [finished(1.0, 1.0, [1.0, 1.0], 1.0, 0), finished(1.0, 0.0, [], 0.0, 1), finished(0.0, 0.0, [0.0], 0.0, 2)]
    method = coda()
    units = method.credit(group)
    [objective] = method.schedule()[1].objectives
    lengths = action_lengths(thread for t in group for thread in t.threads)
    found = advantages(units, objective, lengths)
    for t, value in zip(group, (1.0280, 0.3271, -1.3551), strict=True):
        for action in t.actions:  # of planner and executors alike
            assert found[action.id].tolist() == pytest.approx([value] * len(action.ids), abs=1e-4)


def test_equal_rewards_and_the_order_of_a_group_change_nothing() -> None:
    same = [finished(1.0, 1.0, [1.0], 1.0, member) for member in range(4)]
    assert set(group_advantages(coda().credit(same), 1e-6).values()) == {0.0}
    group = [finished(f1, 1.0, [1.0], 1.0, member) for member, f1 in enumerate((0.0, 0.5, 1.0, 1.0))]
    plain = group_advantages(coda().credit(group), 1e-6)
    random.Random(1).shuffle(group)
    assert group_advantages(coda().credit(group), 1e-6) == pytest.approx(plain)


def test_units_of_two_questions_are_never_normalised_together() -> None:
    one, two = finished(1.0, 1.0, [1.0], 1.0), finished(0.0, 1.0, [1.0], 1.0)
    two.group = "h"
    assert len({unit.baseline for t in (one, two) for unit in coda().credit([t])}) == 2


@pytest.mark.parametrize("bad", [{"status": "length"}, {"status": "error"}, {"rewards": []}])
def test_unscored_and_failed_rollouts_give_no_unit(bad: dict[str, Any]) -> None:
    assert coda().credit([replace(finished(1.0, 1.0, [1.0], 1.0), **bad)]) == []


def test_an_unscored_part_gives_no_unit_and_never_zero() -> None:
    assert coda().credit([finished(1.0, 1.0, [1.0], None)]) == []


# Loss


def test_objectives_have_the_papers_numbers() -> None:
    [sft, rl] = Coda(CodaConfig()).schedule()
    assert [(stage.name, stage.kind, stage.start, stage.merges) for stage in (sft, rl)] == [
        ("sft", "sft", "", ("shared",)), ("rl", "rl", "sft", ("shared",)),
    ]  # fmt: skip
    [imitated], [peco] = sft.objectives, rl.objectives
    assert (imitated.slot, imitated.imitation, imitated.policy) == ("shared", ImitationTerm(1.0, TOKEN_MEAN), None)
    over = (total("rollout"), mean("group"), mean("batch"))
    assert (peco.policy, peco.kl) == (PolicyTerm("token", (0.2, 0.2), None, over), KlTerm(1e-3, "loss", over))
    assert (peco.name, peco.slot, peco.estimator, peco.lr, peco.critic) == ("peco", "shared", "group", 1e-6, None)


def test_loss_switches() -> None:
    def objective(**options: Any) -> Any:
        return coda(**options).schedule()[1].objectives[0]

    plain = objective()
    assert objective(tokens="mean") == replace(plain, policy=replace(plain.policy, over=TOKEN_MEAN), kl=replace(plain.kl, over=TOKEN_MEAN))
    assert objective(dual_clip=3.0) == replace(plain, policy=replace(plain.policy, dual_clip=3.0))
    assert objective(kl=0.0) == replace(plain, kl=None)
    assert objective(clip=0.1) == replace(plain, policy=replace(plain.policy, clip=(0.1, 0.1)))


def test_token_sum_and_token_mean() -> None:
    """Two rollouts of a question, of 1 + 2 and 1 tokens. The sum weighs every token 1/2; the mean 1/4."""
    group = [finished(1.0, 1.0, [1.0], 1.0, 0), finished(0.0, 0.0, [], 0.0, 1)]
    lengths = action_lengths(thread for t in group for thread in t.threads)
    assert sum(lengths.values()) == 4
    for tokens, weight in (("sum", 0.5), ("mean", 0.25)):
        method = coda(tokens=tokens)
        [objective] = method.schedule()[1].objectives
        assert objective.policy is not None
        assert item_weights(method.credit(group), lengths, objective.policy.over) == {"g.0": weight, "g.1": weight}


def test_observations_carry_no_loss_and_no_kl() -> None:
    group = [finished(1.0, 1.0, [1.0, 1.0], 1.0, 0), finished(0.0, 0.0, [1.0], 0.0, 1)]
    method = coda()
    [objective] = method.schedule()[1].objectives
    threads = [thread for t in group for thread in t.threads]
    units = method.credit(group)
    batch = cut(objective, make_batch("shared", threads, units), units, [], action_lengths(threads), 10**6, [0]).batch
    action = np.concatenate([np.full(len(turn.ids), isinstance(turn, Action)) for thread in threads for turn in thread.turns])
    assert (action == (batch.policy_weight > 0)).all()
    assert (action == (batch.kl_weight > 0)).all()
    assert 0 < action.sum() < len(action)


# Figures


def test_diagnostics(renderer: Renderer) -> None:
    first, _ = episode(renderer, SCRIPT)
    second, _ = episode(renderer, {"planner": [PLANNER[0], ANSWER], "executor": [INVALID, *worked(MENTOR)]})
    third, _ = episode(renderer, DIRECT)
    found = coda().diagnostics([first, second, third])
    assert (found["executors"], found["executors/right"], found["executors/failed"]) == (1.0, pytest.approx(2 / 3), 0.0)
    peaks = {role: [max(len(thread.ids) for thread in t.threads_of(role)) for t in (first, second)] for role in ("planner", "executor")}
    assert found["context/planner"] == pytest.approx((sum(peaks["planner"]) + len(third.threads[0].ids)) / 3)
    assert found["context/planner/max"] == max(peaks["planner"])
    assert (found["context/executor"], found["context/executor/max"]) == (sum(peaks["executor"]) / 2, max(peaks["executor"]))


def test_diagnostics_of_nothing_and_of_the_ablation(renderer: Renderer) -> None:
    assert coda().diagnostics([]) == {"executors": 0.0}
    method = coda(structure="monolithic")
    t, _ = episode(renderer, MONOLITH, method)
    assert method.diagnostics([t]) == {f"context/monolith{key}": len(t.threads[0].ids) for key in ("", "/max")}


def test_diagnostics_need_no_states(renderer: Renderer) -> None:
    t, _ = episode(renderer, NESTED, coda(depth=2))
    whole = coda(depth=2).diagnostics([t])
    assert (whole["executors"], whole["context/lead"] > 0) == (3.0, True)
    assert coda(depth=2).diagnostics([replace(t, states={})]) == whole
    assert coda(depth=2).credit([replace(t, states={})]) == coda(depth=2).credit([t])


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.1, False), (0.12, True)])
def test_a_retriever_that_fails_executors_is_told(share: float | None, warned: bool) -> None:
    rows = [{"method/executors/failed": 1.0}, {} if share is None else {"method/executors/failed": share}]
    alarms = coda().alarms(rows)
    assert bool(alarms) is warned
    if warned:
        assert alarms["executors_failed"].startswith("12% of the executors failed")
    assert coda().alarms([]) == {}


def test_failed_executors_are_counted(renderer: Renderer) -> None:
    t = finished(1.0, 1.0, [None, 1.0, 1.0, 1.0], 1.0)
    assert coda().diagnostics([t])["executors/failed"] == pytest.approx(0.25)
