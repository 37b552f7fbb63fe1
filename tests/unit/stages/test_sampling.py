"""A step's groups: what is kept of them, that credit is given once, and what is said where nothing can be learned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from math import isfinite
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from scripted import TWO_HOPS

from rolecast.config import RunConfig, make_config
from rolecast.credit import group_advantages
from rolecast.errors import EmptyUpdateError, InputError
from rolecast.evaluation.metrics import valid_share
from rolecast.methods.decor import Decor
from rolecast.methods.registry import make_method
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.stages.sampling import Credited, NothingLearnedError, Sampler, describe, shuffled
from rolecast.types import Action, Example, Gold, ImitationTerm, Objective, Question, Reward, Stage, Status, Thread, Trajectory, Unit

QUESTIONS = [Question(f"q{i}", "Which band is it?", Gold(("The The",))) for i in range(40)]
Mode = Literal["group", "trajectory", "off"]
Earned = Callable[[Episode], Trajectory]


def config_of(mode: Mode = "group", **rl: float) -> RunConfig:
    stages = {"rl": {"questions": 4, "group": 2, "refill": 2, **rl}}
    return make_config({"method": {"name": "decor", "dynamic_sampling": mode}, "stages": stages}, "here")


class Credit:
    """A method that gives each scored rollout a unit, and notes which groups it was asked about."""

    name = "decor"
    dynamic_sampling: Mode

    def __init__(self, examples: bool = False) -> None:
        self.asked: Counter[str] = Counter()
        self._examples = examples

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        [name] = {t.group for t in group}
        self.asked[name] += 1
        return [
            Unit(t.id, (f"{t.id}/a",), reward.value, "decor", t.group, tag="planner", group=t.group, rollout=t.id)
            for t in group
            for reward in t.rewards
            if reward.value is not None
        ]

    def examples(self, group: Sequence[Trajectory]) -> list[Example]:
        return [Example((1, 2), (False, True), objective="shown", group=group[0].group)] if self._examples else []


def rollout(
    episode: Episode, reward: float | None = None, status: Status = "ok", answer: str | None = None, unscored: bool = False
) -> Trajectory:
    """One token long. `reward` None gives none at all, unless it is `unscored`."""
    id = f"{episode.group}.{episode.member}"
    thread = Thread(id, "planner", "shared", turns=[Action(f"{id}/a", (1,), (0.0,), "v", "", "stop")])
    rewards = [Reward("team", id, reward)] if reward is not None or unscored else []
    question = episode.question
    return Trajectory(
        id, question, episode.group, episode.member, "decor", 0, threads=[thread], status=status, answer=answer, rewards=rewards
    )


def sampler(earned: Earned, config: RunConfig, method: Credit | None = None, stage: Stage | None = None) -> Sampler:
    def collect(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Trajectory]:
        return [earned(episode) for episode in episodes]

    method = method or Credit()
    method.dynamic_sampling = make_method(config.method).dynamic_sampling
    rollouts: Any = SimpleNamespace(collect=collect, method=method, control=SimpleNamespace(counts={}))
    return Sampler(config, stage or config.schedule[1], rollouts, QUESTIONS)


def varied(episode: Episode) -> Trajectory:
    """Questions of an even number earn one rollout 0.4 and the other 0.6, the others 0.5 each."""
    odd = int(episode.question.id[1:]) % 2
    return rollout(episode, 0.5 if odd else 0.4 + 0.2 * episode.member)


@pytest.mark.parametrize("mode", ["group", "trajectory", "off"])
def test_credit_is_given_once_per_group_however_often_it_is_looked_at(mode: Mode) -> None:
    method = Credit()
    made = sampler(varied, config_of(mode, questions=10, refill=20), method)
    batch, numbers = made.sample(0)
    assert (numbers["groups/dropped"] > 0) == (mode != "off")
    assert set(method.asked.values()) == {1}
    assert len(method.asked) == len(batch.groups) + numbers["groups/dropped"]
    assert {t.group for t in batch.trajectories} <= set(method.asked)
    batch.units, batch.units, batch.examples  # noqa: B018
    assert set(method.asked.values()) == {1}
    assert len(batch.units) == len(batch.trajectories) == 2 * len(batch.groups)


def test_groups_without_variance_are_drawn_again_from_other_questions() -> None:
    made = sampler(varied, config_of("group", questions=10, refill=20))
    batch, numbers = made.sample(0)
    assert numbers["groups"] == len(batch.groups) == 10
    assert all(any(group_advantages(group.units, 1e-6).values()) for group in batch.groups)
    assert made.dropped == numbers["groups/dropped"] > 0
    assert made.cost.sampled == numbers["tokens/sampled"] == 2 * (10 + made.dropped)
    before = made.dropped
    made.sample(1)
    assert made.dropped > before  # it counts over the stage


def test_a_step_that_is_full_is_drawn_no_further() -> None:
    made = sampler(lambda e: rollout(e, float(e.member)), config_of("group", refill=2))
    play, rounds = made.rollouts.collect, []

    def collect(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Trajectory]:
        rounds.append(len(episodes))
        return play(episodes, sampling, phase)  # type: ignore[arg-type]

    made.rollouts.collect = collect  # type: ignore[method-assign,assignment]
    made.sample(0)
    assert rounds == [4 * 2]


def test_a_later_stage_draws_the_questions_and_samples_that_come_next(monkeypatch: pytest.MonkeyPatch) -> None:
    sft, first = RunConfig().schedule
    second = replace(first, name="second", start="rl")
    alone = config_of("off", steps=3)
    drawn = [[t.group for t in sampler(varied, alone).sample(step)[0].trajectories] for step in range(6)]
    monkeypatch.setattr(Decor, "schedule", lambda self: (sft, first, second))
    both = make_config(
        {**alone.model_dump(), "stages": {**alone.model_dump()["stages"], "second": alone.stages["rl"].model_dump()}}, "here"
    )
    for stage, expected in ((first, drawn[:3]), (second, drawn[3:])):
        assert [[t.group for t in sampler(varied, both, stage=stage).sample(step)[0].trajectories] for step in range(3)] == expected
    assert drawn[0] != drawn[3]


def test_without_dynamic_sampling_a_step_is_taken_as_it_comes_if_any_group_teaches() -> None:
    batch, numbers = sampler(varied, config_of("off", questions=10)).sample(0)
    assert (len(batch.groups), numbers["groups/dropped"]) == (10, 0)
    assert not all(any(group_advantages(group.units, 1e-6).values()) for group in batch.groups)


def test_of_trajectories_those_are_kept_that_are_neither_right_nor_wrong() -> None:
    rewards = (0.0, 0.4, 1.0, 0.6)
    made = sampler(lambda episode: rollout(episode, rewards[episode.member]), config_of("trajectory", group=4))
    batch, _ = made.sample(0)
    assert sorted({t.member for t in batch.trajectories}) == [1, 3]
    assert sorted({unit.reward for unit in batch.units}) == [0.4, 0.6]
    assert len(batch.units) == len(batch.trajectories) == 2 * 4


def test_a_group_without_variance_teaches_what_compares_nothing() -> None:
    config = config_of("group")
    ppo = Stage("rl", "rl", "sft", (Objective("decor", "shared", 1e-6, "gae"),))
    batch, numbers = sampler(lambda episode: rollout(episode, 0.5), config, stage=ppo).sample(0)
    assert (len(batch.groups), numbers["groups/dropped"]) == (4, 0)
    shown = Stage("rl", "rl", "sft", (Objective("shown", "shared", 1e-6, imitation=ImitationTerm()),))
    batch, _ = sampler(lambda episode: rollout(episode), config, Credit(examples=True), shown).sample(0)
    assert (len(batch.groups), len(batch.examples), batch.units) == (4, 4, [])


def test_what_is_shown_alone_is_described_without_numbers_of_nothing() -> None:
    """By the letter no rollout stays of a group with rewards of 0 and 1; what it shows does."""
    stage = Stage("rl", "rl", "sft", (Objective("shown", "shared", 1e-6, imitation=ImitationTerm()),))
    made = sampler(lambda e: rollout(e, float(e.member)), config_of("trajectory"), Credit(examples=True), stage)
    batch, _ = made.sample(0)
    assert (len(batch.examples), batch.trajectories, batch.units) == (4, [], [])
    assert describe(batch.trajectories, batch.units) == {}


def test_no_action_is_no_valid_action() -> None:
    """As where no question left its roles room to speak."""
    silent = Trajectory("t", TWO_HOPS, "g", 0, "decor", 0, status="length")
    assert (valid_share([silent]), valid_share([])) == (0.0, 0.0)
    assert all(map(isfinite, describe([silent], []).values()))


def test_a_step_is_described_in_all_and_by_tag_and_role() -> None:
    """A planner's actions of 2 tokens, valid, and 4, not; an answerer's of 9, valid."""

    def act(id: str, tokens: int, valid: bool) -> Action:
        return Action(id, (1,) * tokens, (0.0,) * tokens, "v", "", "stop", valid=valid)

    threads = [
        Thread("p", "planner", "shared", turns=[act("a", 2, True), act("b", 4, False)]),
        Thread("q", "answerer", "shared", turns=[act("c", 9, True)]),
    ]
    played = Trajectory("t", TWO_HOPS, "g", 0, "decor", 0, threads=threads)
    units = [Unit(tag + str(r), (tag,), r, "decor", "g", tag=tag) for tag, r in (("plan", 0.25), ("plan", 0.75), ("answer", 2.0))]
    numbers = describe([played], units)
    assert {name: numbers[name] for name in ("reward", "reward/plan", "reward/answer")} == {
        "reward": 1.0, "reward/plan": 0.5, "reward/answer": 2.0,
    }  # fmt: skip
    assert {name: n for name, n in numbers.items() if name.startswith(("valid/", "tokens/"))} == {
        "valid/planner": 0.5, "tokens/planner": 3.0, "valid/answerer": 1.0, "tokens/answerer": 9.0,
    }  # fmt: skip
    assert describe([played], [])["reward"] == 0.0


FAULTS = "look at the episodes' faults"
FORM = "train longer in SFT or raise max_tokens"
ROOM = "raise model.max_context or let less into the context"
JUDGE = "see why the judge gives no score"
LEVEL = "the questions are solved or out of reach: take others, or raise questions or refill"
ADVICE: dict[str, tuple[Earned, str, str]] = {
    "all failed": (lambda e: rollout(e, status="error"), "24 failed", FAULTS),
    "all malformed": (lambda e: rollout(e, -1.0, "format"), "24 broke their form", FORM),
    "all cut off": (lambda e: rollout(e, status="length"), "24 ran out of room", ROOM),
    "all malformed and not scored": (lambda e: rollout(e, status="format"), "24 broke their form", FORM),
    "all unscored": (lambda e: rollout(e, unscored=True), "24 are unscored", JUDGE),
    "all equal": (lambda e: rollout(e, 0.5), "24 earned what the others of their question did", LEVEL),
}


@pytest.mark.parametrize("case", ADVICE)
@pytest.mark.parametrize("mode", ["group", "off"])
def test_where_nothing_can_be_learned_the_largest_share_says_what_to_do(case: str, mode: Mode) -> None:
    earned, share, advice = ADVICE[case]
    made = sampler(earned, config_of(mode))
    with pytest.raises(NothingLearnedError) as caught:
        made.sample(7)
    said = str(caught.value)
    assert isinstance(caught.value, EmptyUpdateError)
    assert said.startswith("step 7, after 3 rounds: no group teaches anything: of 24 rollouts (")
    assert share in said
    assert [hint for hint in (FAULTS, FORM, ROOM, JUDGE, LEVEL) if hint in said] == [advice]
    assert (caught.value.solved, made.cost.sampled) == (False, 24)


@pytest.mark.parametrize(
    ("played", "said"),
    [
        (
            lambda t, m: replace(t, status="error", fault="the retriever is away" if m else "odd"),
            r"24 failed \(most often: the retriever is away\); look",
        ),
        (
            lambda t, m: replace(t, rewards=[Reward("team", t.id, None, reason="no\nchain" if m else "odd")]),
            r"24 are unscored \(most often: no chain\); see why",
        ),
        (
            lambda t, m: replace(t, rewards=[Reward("team", t.id, float("nan"))]),
            r"24 are unscored \(most often: unscored: the score is nan\.\); see",
        ),
    ],
)
def test_the_cause_that_is_named_most_often_is_said(played: Callable[[Trajectory, int], Trajectory], said: str) -> None:
    numbers = count()
    made = sampler(lambda e: played(rollout(e), next(numbers) % 3), config_of("group"))
    with pytest.raises(NothingLearnedError, match=said):
        made.sample(0)


def test_valid_right_and_both_are_counted() -> None:
    kinds = [{"answer": "The The"}, {"answer": "The The", "status": "format"}, {"answer": "no"}, {"status": "length"}]
    made = sampler(lambda e: rollout(e, 0.5, **kinds[e.member]), config_of("group", group=4))
    with pytest.raises(NothingLearnedError, match=r"of 48 rollouts \(24 valid, 24 right, 12 both\) 12 broke"):
        made.sample(0)


@pytest.mark.parametrize(("valid", "advice"), [(0, FORM), (1, LEVEL)])
def test_where_no_rollout_is_in_form_that_is_what_to_mend_though_none_ended_by_it(valid: int, advice: str) -> None:
    """Where a method asks again, a rollout without one valid reply ends as others do."""
    numbers = count()

    def played(e: Episode) -> Trajectory:
        t = rollout(e, 0.0)
        [thread] = t.threads
        return replace(t, threads=[replace(thread, turns=[replace(thread.actions[0], valid=next(numbers) < valid)])])

    with pytest.raises(NothingLearnedError, match=rf"\({valid} valid, 0 right, 0 both\) 24 earned what the others") as caught:
        sampler(played, config_of("group")).sample(0)
    assert str(caught.value).endswith(advice)


def test_shares_are_those_of_all_rollouts_and_the_largest_decides() -> None:
    kinds = [{"status": "error"}, {"status": "format", "reward": 0.5}, {"status": "length"}, {"unscored": True}, *[{"reward": 0.5}] * 4]
    made = sampler(lambda e: rollout(e, **kinds[e.member]), config_of("group", group=8))
    with pytest.raises(NothingLearnedError) as caught:
        made.sample(0)
    assert " 12 failed, 12 broke their form, 12 ran out of room, 12 are unscored, 48 earned" in str(caught.value)
    assert str(caught.value).endswith(LEVEL)


@pytest.mark.parametrize(("first", "second", "advice"), [
    ({"status": "error"}, {"status": "format"}, FAULTS), ({"status": "format"}, {"status": "length"}, FORM),
    ({"status": "length"}, {"unscored": True}, ROOM), ({"unscored": True}, {"reward": 0.5}, JUDGE),
])  # fmt: skip
def test_of_equal_shares_the_first_decides_whatever_it_says(first: dict[str, Any], second: dict[str, Any], advice: str) -> None:
    made = sampler(lambda e: rollout(e, **(second, first)[e.member]), config_of("group"))
    with pytest.raises(NothingLearnedError, match=r"of 24 rollouts \(.*\) 12 .*, 12 ") as caught:
        made.sample(0)
    assert str(caught.value).endswith(advice)


def test_a_rollout_that_credit_leaves_out_is_unscored_though_some_of_its_rewards_are_known() -> None:
    """DECOR with a judge that gives no score: F1 is there, but neither the team's reward nor a role's."""

    def played(e: Episode) -> Trajectory:
        t = rollout(e)
        return replace(t, rewards=[Reward("team.f1", t.id, 0.5), Reward("team.em", t.id, 0.0), Reward("team.judge", t.id, None)])

    made = sampler(played, config_of("group"))
    decor = make_method(made.config.method)
    made.rollouts.method.credit = decor.credit  # type: ignore[method-assign]
    with pytest.raises(
        NothingLearnedError, match=r"of 24 rollouts \(24 valid, 0 right, 0 both\) 24 are unscored; see why the judge gives no score"
    ):
        made.sample(0)


@pytest.mark.parametrize("reward", [None, float("nan"), "0.5"])
def test_credit_without_a_number_is_the_method_s_fault_and_says_so(reward: Any) -> None:
    made = sampler(rollout, config_of("group"))
    made.rollouts.method.credit = lambda group: [  # type: ignore[method-assign]
        Unit(group[0].id, (group[0].threads[0].actions[0].id,), reward, "decor", "b", group=group[0].group)
    ]
    with pytest.raises(InputError, match=r"its credit gives \S+ the reward (None|nan|'0.5'); leave out units of what has no score"):
        made.sample(0)


@pytest.mark.parametrize("score", [None, 0.5])
def test_a_step_without_any_verdict_says_so_though_other_rewards_are_equal(score: float | None) -> None:
    """Not that its groups have no variance: that is what a judge that is away makes of rewards that are mixed with its own."""

    def played(e: Episode) -> Trajectory:
        t = rollout(e, 0.5)
        judge = [Reward("role", t.id, None, "judge.planner", "status 503"), Reward("team.judge", t.id, score, "judge", "status 503")]
        return replace(t, rewards=[*t.rewards, *judge])

    with pytest.raises(NothingLearnedError) as caught:
        sampler(played, config_of("group")).sample(0)
    mute = r" 24 earned what the others of their question did; all 48 verdicts of the judge are unscored (most often: status 503); "
    assert (mute in str(caught.value)) == (score is None)
    assert str(caught.value).endswith(JUDGE if score is None else LEVEL)


@pytest.mark.parametrize(("right", "solved"), [(40, True), (39, True), (37, False), (0, False)])
def test_questions_are_solved_where_nearly_all_answers_are_right(right: int, solved: bool) -> None:
    answers = ["The The"] * right + ["no"] * (40 - right)
    made = sampler(lambda e: rollout(e, 1.0, answer=answers[e.member]), config_of("group", group=40))
    with pytest.raises(NothingLearnedError) as caught:
        made.sample(0)
    assert caught.value.solved == solved


def test_only_trained_slots_spend_the_budget() -> None:
    """3 tokens of the planner, 5 of a frozen condenser, 2 of a probe of the answerer."""

    def act(id: str, tokens: int) -> Action:
        return Action(id, (1,) * tokens, (0.0,) * tokens, "v", "", "stop")

    threads = [
        Thread("t0", "planner", "shared", turns=[act("a", 3)]),
        Thread("t1", "condenser", "frozen", turns=[act("b", 5)]),
        Thread("t2", "answerer", "shared", probe=True, turns=[act("c", 2)]),
    ]
    made = sampler(lambda e: Trajectory("t", TWO_HOPS, e.group, e.member, "decor", 0, threads=threads), config_of("off"))
    made._groups(0, 0, 1)
    assert (made.cost.sampled, made.cost.frozen) == (2 * (3 + 2), 2 * 5)
    assert made.told() == {
        "tokens/sampled": 10, "cost/frozen": 10, "cost/prompt": 0, "cost/searches": 0, "cost/judge_calls": 0, "cost/judge_tokens": 0,
    }  # fmt: skip
    assert made.cost.context == {"planner": 3, "condenser": 5, "answerer": 2}
    made._groups(0, 1, 1)
    assert made.cost.sampled == 20  # over the stage


def test_every_round_of_every_step_plays_other_questions_as_training_at_the_stages_temperature() -> None:
    made = sampler(lambda e: rollout(e, 0.5), config_of("group", refill=1, temperature=0.75))
    asked: list[tuple[Sequence[Episode], Sampling, str]] = []
    play = made.rollouts.collect

    def collect(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Trajectory]:
        asked.append((episodes, sampling, phase))
        return play(episodes, sampling, phase)  # type: ignore[arg-type]

    made.rollouts.collect = collect  # type: ignore[method-assign,assignment]
    for step in (0, 1):
        with pytest.raises(NothingLearnedError):
            made.sample(step)
    assert [(sampling, phase) for _, sampling, phase in asked] == [(Sampling(0.75, 1.0), "train")] * 4
    assert len({frozenset(episode.question.id for episode in episodes) for episodes, _, _ in asked}) == 4
    names = [{episode.group.partition(":")[0] for episode in episodes} for episodes, _, _ in asked]
    assert names == [{"0.0"}, {"0.1"}, {"1.0"}, {"1.1"}]
    assert all(sorted(episode.member for episode in episodes) == [0] * 4 + [1] * 4 for episodes, _, _ in asked)


def test_rewards_of_another_objective_teach_nothing() -> None:
    other = Stage("rl", "rl", "sft", (Objective("other", "shared", 1e-6, "group"),))
    with pytest.raises(NothingLearnedError):
        sampler(varied, config_of("group"), stage=other).sample(0)


def test_examples_stay_where_only_some_rollouts_do() -> None:
    rewards = (0.0, 0.4, 1.0, 0.6)
    made = sampler(lambda e: rollout(e, rewards[e.member]), config_of("trajectory", group=4), Credit(examples=True))
    batch, _ = made.sample(0)
    assert (len(batch.groups), len(batch.examples)) == (4, 4)


def played(group: str, rewards: Sequence[Sequence[Unit]]) -> Credited:
    """A question's rollouts, each with units that have an action of their own, and what they share with others as given."""
    units = [
        replace(unit, id=f"{group}.{m}:{n}", actions=(f"{group}.{m}/{n}",), group=group) for m, of in enumerate(rewards) for n, unit in enumerate(of)
    ]  # fmt: skip
    trajectories = [
        Trajectory(
            f"{group}.{m}", TWO_HOPS, group, m, "decor", 0,
            threads=[Thread(f"{group}.{m}/t", "planner", "shared", turns=[Action(u.actions[0], (1,), (0.0,), "v", "", "stop") for u in units if u.id.startswith(f"{group}.{m}:")])],
        )
        for m in range(len(rewards))
    ]  # fmt: skip
    return Credited(trajectories, units, [])


def unit(reward: float, tag: str, order: int = 0, objective: str = "ppo", chain: str = "") -> Unit:
    return Unit("", (), reward, objective, chain=chain, order=order, tag=tag)


def test_whole_rollouts_exchange_what_they_earned_and_each_role_and_turn_keeps_its_place() -> None:
    """Rollout m of question g earns 100 g + 10 m + its place: the planner's three turns, which are a chain, and the answerer's one."""
    places = [("planner", 0), ("planner", 1), ("planner", 2), ("answerer", 0)]
    groups = [
        played(
            f"g{g}", [[unit(100.0 * g + 10 * m + n, tag, order, chain=str(m)) for n, (tag, order) in enumerate(places)] for m in range(5)]
        )
        for g in range(3)
    ]
    found = shuffled(groups, random.Random(1))
    before = [unit for group in groups for unit in group.units]
    assert [replace(unit, reward=0.0) for unit in found] == [replace(unit, reward=0.0) for unit in before]
    moved = 0
    for start in range(0, len(found), len(places)):
        rewards = [unit.reward for unit in found[start : start + len(places)]]
        assert [reward % 10 for reward in rewards] == [0, 1, 2, 3]  # in their places
        assert len({reward // 10 for reward in rewards}) == 1  # of one rollout
        assert rewards[0] // 100 == before[start].reward // 100  # of the same question
        moved += rewards[0] != before[start].reward
    assert moved > 5
    for g in range(3):
        assert sorted(u.reward for u in found if u.group == f"g{g}") == sorted(u.reward for u in before if u.group == f"g{g}")


def test_a_place_that_the_next_rollout_lacks_gets_what_the_one_after_earned_there() -> None:
    """Rollouts of one, two, two and three turns: what is earned in a turn stays in that turn, and nothing is lost or made up."""
    turns = (1, 2, 2, 3)
    group = played("g", [[unit(10.0 * m + t, "searcher", t) for t in range(count)] for m, count in enumerate(turns)])
    seen: set[tuple[float, ...]] = set()
    for seed in range(40):
        found = shuffled([group], random.Random(seed))
        for turn in range(3):
            assert sorted(u.reward for u in found if u.order == turn) == sorted(u.reward for u in group.units if u.order == turn)
        seen.add(tuple(u.reward for u in found))
    assert len(seen) > 10


def test_units_of_one_kind_in_a_rollout_are_told_apart_by_their_number() -> None:
    """Three samples of a generator in each of two rollouts."""
    group = played("g", [[unit(10.0 * m + n, "generator") for n in range(3)] for m in range(2)])
    swapped = next(found for seed in range(9) if (found := shuffled([group], random.Random(seed)))[0].reward == 10)
    assert [u.reward for u in swapped] == [10, 11, 12, 0, 1, 2]


def test_what_a_rollout_is_given_tells_nothing_of_what_it_earned() -> None:
    """Over many draws each of the four gets each reward equally often, its own too."""
    group = played("g", [[unit(float(m), "planner")] for m in range(4)])
    rng = random.Random(0)
    given = [Counter[float]() for _ in range(4)]
    for _ in range(4000):
        for m, u in enumerate(shuffled([group], rng)):
            given[m][u.reward] += 1
    assert all(abs(count - 1000) < 120 for counts in given for count in counts.values())
    assert all(len(counts) == 4 for counts in given)


def test_turns_keep_their_place_whatever_order_a_rollout_lists_them_in() -> None:
    forth, back = ([unit(10.0 * m + t, "searcher", t) for t in order] for m, order in enumerate(((0, 1, 2), (2, 1, 0))))
    group = played("g", [forth, back])
    swapped = next(found for seed in range(9) if (found := shuffled([group], random.Random(seed)))[0].reward == 10)
    assert [u.reward for u in swapped] == [10, 11, 12, 2, 1, 0]


# Streamed


@dataclass
class Streaming:
    """Plays groups in the order in which they were asked for, but for those named in `slow`, which come last."""

    method: Any
    earned: Earned
    slow: frozenset[int] = frozenset()  # numbers in the order of asking
    played: list[str] = field(default_factory=list)
    most: int = 0
    unneeded: list[Trajectory] = field(default_factory=list)
    control: Any = field(default_factory=lambda: SimpleNamespace(counts={}))

    def stream(self, episodes: Sequence[Episode], sampling: Sampling, phase: str, take: Any) -> int:
        assert (sampling, phase) == (Sampling(1.0, 1.0), "train")
        queue = list(groups_in(episodes))
        asked = [group[0].group for group in queue]
        while queue:
            self.most = max(self.most, len(queue))
            ready = [group for group in queue if asked.index(group[0].group) not in self.slow] or queue
            queue.remove(ready[0])
            self.played.append(ready[0][0].group)
            more = take([self.earned(episode) for episode in ready[0]])
            if more is None:
                self.unneeded = [self.earned(group[0]) for group in queue]
                return len(queue)
            queue += groups_in(more)
            asked += [group[0].group for group in groups_in(more)]
        return 0

    def spent(self, seconds: float) -> list[Trajectory]:
        told, self.unneeded = self.unneeded, []
        return told


def groups_in(episodes: Sequence[Episode]) -> list[list[Episode]]:
    return [list(of) for _, of in groupby(episodes, key=lambda episode: episode.group)]


def streamed(earned: Earned, slow: frozenset[int] = frozenset(), **rl: float) -> tuple[Sampler, Streaming]:
    config = config_of("group", oversample=2, **rl)
    method = Credit()
    method.dynamic_sampling = "group"
    rollouts = Streaming(method, earned, slow)
    return Sampler(config, config.schedule[1], rollouts, QUESTIONS), rollouts  # type: ignore[arg-type]


def all_vary(episode: Episode) -> Trajectory:
    return rollout(episode, 0.4 + 0.2 * episode.member)


def test_a_step_ends_when_it_has_what_it_needs_and_what_the_rest_sampled_is_in_its_cost() -> None:
    made, rollouts = streamed(all_vary, slow=frozenset({0, 3}))
    batch, numbers = made.sample(0)
    assert len(rollouts.played) == len(batch.groups) == 4
    assert (numbers["groups"], numbers["groups/dropped"], numbers["groups/cancelled"]) == (4, 0, 2)
    assert made.cost.sampled == 4 * 2 + 2  # one episode of each cancelled group had begun
    assert numbers["tokens/sampled"] == 10


def test_the_batch_has_its_groups_in_the_order_of_drawing_whoever_came_first() -> None:
    made, rollouts = streamed(all_vary, slow=frozenset({0, 1, 2}))
    made_in_order, _ = streamed(all_vary)
    batch, _ = made.sample(0)
    names = [group.trajectories[0].group for group in batch.groups]
    first = [group[0].group for group in made._pool(0)]
    assert rollouts.played != names
    assert names == sorted(names, key=first.index)
    assert [t.group for t in made_in_order.sample(0)[0].trajectories][::2] == first[:4]


def test_a_group_that_is_dropped_is_replaced_at_once_and_no_more_are_drawn_than_rounds_would() -> None:
    made, rollouts = streamed(varied, slow=frozenset({0}), questions=6, refill=3)
    batch, numbers = made.sample(0)
    assert rollouts.most == 6 + 2
    assert len(batch.groups) <= 6
    pool = [group[0].group for group in made._pool(0)]
    assert len(pool) == 24
    assert set(rollouts.played) <= set(pool)
    assert numbers["groups/dropped"] == len(rollouts.played) - len(batch.groups)
    assert all(t.group in pool for t in batch.trajectories)

    def solved(episode: Episode) -> Trajectory:
        return rollout(episode, 0.5)

    never, rollouts = streamed(solved, questions=3, refill=1)
    with pytest.raises(NothingLearnedError):
        never.sample(0)
    assert sorted(rollouts.played) == sorted({group[0].group for group in never._pool(0)})
    assert len(rollouts.played) == 6


def test_the_rounds_of_a_step_without_oversampling_are_those_of_before() -> None:
    asked: list[list[str]] = []

    def collect(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Trajectory]:
        asked.append([episode.group for episode in episodes])
        return [varied(episode) for episode in episodes]

    made = sampler(varied, config_of("group"))
    made.rollouts.collect = collect  # type: ignore[method-assign]
    begun: list[Any] = []
    made.rollouts.begin = lambda *given: begun.append(given)  # type: ignore[method-assign]
    made.begin(0)
    made.sample(0)
    [(episodes, sampling, phase)] = begun
    assert ([episode.group for episode in episodes], sampling, phase) == (asked[0], Sampling(1.0, 1.0), "train")
    assert len(asked[0]) == 4 * 2


def test_streamed_steps_begin_with_the_groups_that_were_begun_ahead() -> None:
    made, rollouts = streamed(all_vary)
    begun: list[Any] = []
    rollouts.begin = lambda *given: begun.append(given)  # type: ignore[attr-defined]
    made.begin(0)
    made.sample(0)
    assert [group[0].group for group in groups_in(begun[0][0])] == [group[0].group for group in made._pool(0)][:6]
    assert rollouts.played == [group[0].group for group in made._pool(0)][:4]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lockstep": True}, "who is cancelled depends on who is faster"),
        ({"method": {"name": "decor", "dynamic_sampling": "off"}}, "drops no groups"),
    ],
)
def test_oversampling_is_refused_where_it_means_nothing(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        make_config({"method": {"name": "decor"}, "stages": {"rl": {"oversample": 2}}, **given}, "here")
