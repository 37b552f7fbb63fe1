"""Search-R1: the loop, its observations, its two rewards and its credit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, prompt_of, said
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rolecast.credit import group_advantages
from rolecast.folds import TOKEN_MEAN
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.search_r1.method import CLOSE, OPEN, SearchR1, SearchR1Config, parse
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.types import (
    Action,
    Gold,
    ImitationTerm,
    KlTerm,
    Observation,
    Passage,
    PolicyTerm,
    Question,
    Reward,
    Thread,
    Trajectory,
    ValueTerm,
    question_id,
)
from rolecast.world.tokenizer import demo_tokenizer

ANSWER = said("answer", "Kel Dax")
WRONG = said("answer", "Zen Kol")
SEARCH = said("search", MENTOR.query)
INVALID = "<think> next fact</think>"


def search_r1(**options: Any) -> SearchR1:
    return SearchR1(SearchR1Config(**{"prompts": "compact", **options}))


def episode(
    renderer: Renderer, lines: Sequence[str], method: SearchR1 | None = None, question: Question = TWO_HOPS,
    passages: Sequence[Passage] = (passage(MENTOR), passage(EMPLOYER)), **options: Any,
) -> tuple[Trajectory, ScriptedEngine, TableRetriever]:  # fmt: skip
    method = method or search_r1()
    engine, retriever = ScriptedEngine(renderer, method, {"searcher": lines}), TableRetriever(list(passages))
    return play(method, question, engine, retriever, renderer, LexicalJudge(), **options), engine, retriever


def outcome(t: Trajectory) -> float | None:
    [reward] = [reward for reward in t.rewards if reward.name == "outcome"]
    return reward.value


@pytest.mark.parametrize(
    ("text", "move"),
    [
        (SEARCH, {"think": "next fact", "search": MENTOR.query}),
        (ANSWER, {"think": "next fact", "answer": "Kel Dax"}),
        ("<answer> Kel Dax</answer>", None),
        (said("search", ""), None),
        (said("answer", " "), None),
        (SEARCH + ANSWER, None),
        (INVALID, None),
    ],
)
def test_parse(text: str, move: dict[str, str] | None) -> None:
    assert parse(text) == move


# The loop


def test_one_transcript_holds_everything(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [SEARCH, ANSWER])
    [thread] = t.threads
    assert [type(turn) for turn in thread.turns] == [Observation, Action, Observation, Action]
    assert engine.requests[1].ids == tuple(token for turn in thread.turns[:3] for token in turn.ids)
    assert thread.turns[2].text == f"\n{OPEN} {MENTOR.sentence}\n {EMPLOYER.sentence}{CLOSE}\n"
    assert (t.answer, t.status, t.searches, retriever.asked) == ("Kel Dax", "ok", 1, [(MENTOR.query, 3)])


@pytest.mark.parametrize("searches", [0, 1, 3, 4])
def test_up_to_four_searches_before_an_answer(renderer: Renderer, searches: int) -> None:
    t, engine, retriever = episode(renderer, [SEARCH] * searches + [ANSWER])
    assert (t.answer, len(retriever.asked), engine.unsaid) == ("Kel Dax", searches, [])


def test_a_fifth_search_is_not_run_and_ends_the_episode_unanswered(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [SEARCH] * 5)
    assert (t.answer, t.status, len(retriever.asked), len(engine.speakers)) == (None, "ok", 4, 5)
    assert isinstance(t.threads[0].turns[-1], Action)


@pytest.mark.parametrize("max_turns", [1, 2])
def test_the_number_of_searches_is_an_option(renderer: Renderer, max_turns: int) -> None:
    t, engine, _ = episode(renderer, [SEARCH] * (max_turns + 1), search_r1(max_turns=max_turns))
    assert (t.searches, len(engine.speakers)) == (max_turns, max_turns + 1)


@pytest.mark.parametrize("reply", [INVALID, "nonsense", said("search", ""), said("answer", "")])
def test_an_invalid_action_is_asked_again_without_penalty(renderer: Renderer, reply: str) -> None:
    t, _, retriever = episode(renderer, [reply, ANSWER])
    again = t.threads[0].turns[2]
    assert isinstance(again, Observation)
    assert "<search>" in again.text
    assert "<answer>" in again.text
    assert (again.sources, retriever.asked) == ((), [])
    assert (t.status, t.answer, outcome(t)) == ("ok", "Kel Dax", 1.0)
    assert [action.valid for action in t.actions] == [False, True]


def test_invalid_actions_use_up_turns(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, [INVALID] * 5)
    assert (t.answer, t.status, len(engine.speakers)) == (None, "ok", 5)


def test_what_a_token_carried_past_the_stop_string_is_no_fault(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [f"{SEARCH}.", f"{ANSWER}."])
    assert (t.answer, [action.valid for action in t.actions]) == ("Kel Dax", [True, True])


def test_each_turn_may_take_its_500_tokens_and_no_more_than_the_context_holds(renderer: Renderer) -> None:
    _, engine, _ = episode(renderer, [SEARCH, ANSWER], max_context=540)
    assert engine.requests[0].max_tokens == 500
    assert engine.requests[1].max_tokens == 540 - len(engine.requests[1].ids) < 500


def test_a_transcript_that_outgrows_the_context_ends_as_length(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, [SEARCH, ANSWER], max_context=60)
    assert (t.status, t.answer, len(engine.speakers), outcome(t)) == ("length", None, 1, 0.0)
    assert t.threads[0].turns[0].text.count(TWO_HOPS.text) == 1
    assert search_r1().credit([t]) == []  # left out of its group: nobody is to blame


# Observations


def observed(renderer: Renderer, method: SearchR1, passages: Sequence[Passage]) -> str:
    trajectory = Trajectory("t", TWO_HOPS, "g", 0, "search_r1", 0)
    engine = ScriptedEngine(renderer, method, {})
    return method.information(passages, Env(engine, TableRetriever([]), renderer, trajectory, 4096))


def words(count: int) -> Passage:
    return Passage("p", "Long", " ".join(["one"] * count))  # a token each


@pytest.mark.parametrize("style", ["compact", "instruct"])
def test_a_long_observation_is_cut_inside_its_tags(renderer: Renderer, style: str) -> None:
    text = observed(renderer, search_r1(prompts=style, observation_tokens=40), [words(30), words(30)])
    assert text.startswith(f"\n{OPEN}")
    assert text.endswith(f" one{CLOSE}\n")
    assert len(renderer.encode(text)) == 40


@pytest.mark.parametrize(("count", "cut"), [(36, False), (37, True)])
def test_an_observation_is_cut_only_where_it_is_too_long(renderer: Renderer, count: int, cut: bool) -> None:
    text = observed(renderer, search_r1(observation_tokens=40), [words(count)])
    assert (text.count(" one") < count) is cut
    assert len(renderer.encode(text)) == 40


def test_the_default_is_500_tokens_of_three_passages(renderer: Renderer) -> None:
    method = search_r1()
    assert (method.config.observation_tokens, method.config.k, method.config.max_turns, method.config.max_tokens) == (500, 3, 4, 500)
    assert len(renderer.encode(observed(renderer, method, [words(400)] * 3))) == 500


def test_no_passages_are_an_empty_observation(renderer: Renderer) -> None:
    assert observed(renderer, search_r1(), []) == f"\n{OPEN}{CLOSE}\n"


def test_instruct_passages_are_numbered_and_titled(renderer: Renderer) -> None:
    text = observed(renderer, search_r1(prompts="instruct"), [Passage("1", "A", "x."), Passage("2", "B", "y.")])
    assert text == f"\n{OPEN}Doc 1 (Title: A) x.\nDoc 2 (Title: B) y.{CLOSE}\n"


@given(st.lists(st.text(alphabet=st.characters(codec="ascii"), max_size=60), max_size=3), st.integers(8, 60))
def test_an_observation_keeps_its_limit_and_its_tags(texts: list[str], limit: int) -> None:
    text = observed(DEMO, search_r1(observation_tokens=limit), [Passage("p", "", text) for text in texts])
    assert len(DEMO.encode(text)) <= limit
    assert text.startswith(f"\n{OPEN}")
    assert text.endswith(f"{CLOSE}\n")


DEMO = Renderer(demo_tokenizer())


def test_a_cut_inside_a_character_keeps_the_limit() -> None:
    for limit in range(8, 20):
        text = observed(DEMO, search_r1(observation_tokens=limit), [Passage("p", "", "日本語の本文")])
        assert len(DEMO.encode(text)) <= limit


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: tags are many tokens, as with tokenizers that do not know them."""
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return fast


def test_tags_longer_than_the_limit_leave_no_room_for_passages() -> None:
    renderer = Renderer(bytes_tokenizer())
    text = observed(renderer, search_r1(observation_tokens=16), [words(30)])
    assert text == f"\n{OPEN}{CLOSE}\n"


@pytest.mark.parametrize(
    ("room", "kept"), [(0, ""), (1, " "), (3, " "), (4, " 日"), (6, " 日"), (9, " 日本"), (10, " 日本語"), (20, " 日本語")]
)
def test_a_cut_leaves_the_whole_characters_that_fit(room: int, kept: str) -> None:
    renderer = Renderer(bytes_tokenizer())  # three tokens a character
    limit = len(renderer.encode(f"\n{OPEN}{CLOSE}\n")) + room
    assert observed(renderer, search_r1(observation_tokens=limit), [Passage("p", "", "日本語")]) == f"\n{OPEN}{kept}{CLOSE}\n"


def test_control_tokens_in_a_passage_keep_the_limit_and_stay_text(renderer: Renderer) -> None:
    passages = [Passage("p", "", " one<eos><|user|> one" * 20)]
    for limit in range(8, 40):
        text = observed(renderer, search_r1(observation_tokens=limit), passages)
        assert len(renderer.encode(text)) <= limit
    t, _, _ = episode(renderer, [SEARCH, ANSWER], passages=passages)
    seen = t.threads[0].turns[2]
    assert renderer.tokenizer.eos_token_id not in seen.ids
    assert seen.ids == renderer.encode(seen.text)


# Rewards


@pytest.mark.parametrize(
    ("lines", "expected"),
    [([SEARCH, ANSWER], 1.0), ([INVALID, ANSWER], 1.0), ([SEARCH, WRONG], 0.0), ([SEARCH] * 5, 0.0), ([INVALID] * 5, 0.0)],
)
def test_outcome_is_exact_match(renderer: Renderer, lines: list[str], expected: float) -> None:
    t, _, _ = episode(renderer, lines)
    assert outcome(t) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([SEARCH, ANSWER], 1.0),
        ([INVALID, ANSWER], 1.0),
        ([SEARCH, said("answer", "Kel")], 2 / 3),
        ([SEARCH, said("answer", "of Kel Dax and Zen")], 4 / 7),
        ([SEARCH, WRONG], 0.0),
        ([SEARCH] * 5, 0.0),
    ],
)
def test_outcome_may_be_f1(renderer: Renderer, lines: list[str], expected: float) -> None:
    t, _, _ = episode(renderer, lines, search_r1(reward="f1"))
    assert outcome(t) == pytest.approx(expected)
    assert {reward.name: reward.value for reward in t.rewards}["team.em"] == float(expected == 1)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([SEARCH, ANSWER], 1.0),
        ([INVALID, ANSWER], 0.8),
        ([SEARCH, WRONG], 0.2),
        ([INVALID, WRONG], 0.1),
        ([SEARCH] * 5, 0.1),
        ([INVALID] * 5, 0.1),
    ],
)
def test_format_reward(renderer: Renderer, lines: list[str], expected: float) -> None:
    t, _, _ = episode(renderer, lines, search_r1(reward="format"))
    assert outcome(t) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lines", "passages", "expected"),
    [
        ([SEARCH, WRONG], [passage(MENTOR)], 0.5),
        ([SEARCH, WRONG], [Passage("other", "", "x")], 0.2),
        ([WRONG], [passage(MENTOR)], 0.2),
        ([INVALID, SEARCH, WRONG], [passage(MENTOR)], 0.1),
        ([SEARCH, ANSWER], [passage(MENTOR)], 1.0),
    ],
)
def test_retrieval_bonus(renderer: Renderer, lines: list[str], passages: list[Passage], expected: float) -> None:
    t, _, _ = episode(renderer, lines, search_r1(reward="format", retrieval_bonus=0.3), passages=passages)
    assert outcome(t) == pytest.approx(expected)


def test_an_unanswered_rollout_never_takes_the_prompts_example_for_an_answer(renderer: Renderer) -> None:
    question = Question("q", "What is the capital of Peru?", Gold(("Lima",)))
    method = search_r1(prompts="instruct")
    t, _, _ = episode(renderer, [INVALID] * 5, method, question)
    assert "<answer> Lima</answer>" in prompt_of(t.threads[0])
    assert t.answer is None
    assert {reward.name: reward.value for reward in t.rewards} == {"outcome": 0.0, "team.em": 0.0, "team.f1": 0.0, "sufficient": 0.0}


def test_an_answer_in_a_passage_is_no_answer_of_the_rollout(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [SEARCH] * 5, passages=[Passage("p", "", ANSWER)])
    assert (t.answer, outcome(t)) == (None, 0.0)


def test_an_unanswered_rollout_scores_zero_whatever_the_gold(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [SEARCH] * 5, question=Question("q", "Which band is it?", Gold(("The The",))))
    assert {reward.value for reward in t.rewards} == {0.0}


# Credit


def test_one_unit_per_rollout_on_every_action(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [SEARCH, INVALID, ANSWER])
    [unit] = search_r1().credit([t])
    assert unit.actions == tuple(action.id for action in t.actions)
    assert (unit.reward, unit.baseline, unit.group, unit.rollout, unit.objective) == (1.0, t.group, t.group, t.id, "grpo")


def finished(group: str, member: int, reward: float | None = 1.0, status: Any = "ok") -> Trajectory:
    t = Trajectory(f"{group}.{member}", TWO_HOPS, group, member, "search_r1", 0, status=status)
    t.threads.append(Thread("t", "searcher", "shared", turns=[Action(f"{t.id}/a0", (1,), (0.0,), "v", "", "stop")]))
    t.rewards.append(Reward("outcome", t.id, reward))
    return t


@pytest.mark.parametrize("bad", [{"status": "error"}, {"reward": None}, {"reward": float("nan")}])
def test_unscored_and_failed_rollouts_give_no_unit(bad: dict[str, Any]) -> None:
    assert [unit.rollout for unit in search_r1().credit([finished("g", 0), finished("g", 1, **bad)])] == ["g.0"]


def test_rows_of_two_data_sets_never_share_a_group() -> None:
    ids = {question_id(dataset, split, row) for dataset in ("nq", "hotpotqa") for split in ("train", "dev") for row in (0, 1, "1 ", "01")}
    assert len(ids) == 16
    assert question_id("nq", "train", 1) == question_id("nq", "train", "1")
    assert question_id("a", "bc", 0) != question_id("ab", "c", 0)


def test_rows_of_two_data_sets_are_not_normalised_together() -> None:
    groups = [question_id(dataset, "train", 0) for dataset in ("nq", "hotpotqa")]
    rewards = {groups[0]: (1.0, 1.0), groups[1]: (0.0, 1.0)}
    units = [u for group in groups for u in search_r1().credit([finished(group, m, r) for m, r in enumerate(rewards[group])])]
    assert list(group_advantages(units, 0.0).values()) == pytest.approx([0, 0, -1, 1])


def test_objectives() -> None:
    [sft, rl] = search_r1().schedule()
    assert [(stage.name, stage.kind, stage.start, stage.merges) for stage in (sft, rl)] == [
        ("sft", "sft", "", ("shared",)), ("rl", "rl", "sft", ("shared",)),
    ]  # fmt: skip
    [grpo], [imitated] = rl.objectives, sft.objectives
    assert (imitated.slot, imitated.imitation, imitated.policy, imitated.kl) == ("shared", ImitationTerm(1.0, TOKEN_MEAN), None, None)
    clipped = PolicyTerm("token", (0.2, 0.2), over=TOKEN_MEAN)
    assert (grpo.slot, grpo.estimator, grpo.policy, grpo.kl) == ("shared", "group", clipped, KlTerm(1e-3, "loss"))
    assert (grpo.critic, grpo.imitation) == (None, None)
    [ppo] = search_r1(algorithm="ppo").schedule()[1].objectives
    assert (ppo.slot, ppo.estimator, ppo.policy, ppo.kl) == ("shared", "gae", clipped, KlTerm(1e-3, "reward"))
    assert (ppo.gamma, ppo.lam, ppo.critic, ppo.lr) == (1.0, 1.0, ValueTerm("critic", 1e-5), 1e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_without_a_coefficient_there_is_no_kl_term(algorithm: str) -> None:
    [objective] = search_r1(algorithm=algorithm, kl=0.0).schedule()[1].objectives
    assert objective.kl is None


def test_to_search_to_the_last_turn_counts_as_abstaining(renderer: Renderer) -> None:
    """Right with the evidence; abstained though it was there; wrong without it; abstained without it, and right by chance."""
    method = search_r1(max_turns=2)
    enough, little = [passage(MENTOR), passage(EMPLOYER)], [passage(MENTOR)]
    played = [
        episode(renderer, lines, method, passages=passages)[0]
        for lines, passages in (
            ([SEARCH, ANSWER], enough),
            ([SEARCH] * 2 + [WRONG], enough),
            ([SEARCH, WRONG], little),
            ([SEARCH] * 2 + [ANSWER], little),
        )
    ]
    assert [next(r.value for r in t.rewards if r.name == "sufficient") for t in played] == [1, 1, 0, 0]
    assert method.diagnostics(played) == {
        "abstention": 0.5, "abstain_accuracy": 0.5, "selective_accuracy": 0.5, "non_abstention_recall": 0.5,
    }  # fmt: skip
    assert method.diagnostics([]) == {}
