"""DAC's episodes: the loop, faults, what is probed where, and what is found out about them."""

from __future__ import annotations

from typing import Any

import pytest
from dac_episodes import BROKEN, FIRST, FOUND, MORE, NOISE, OTHER, RIGHT, SECOND, STOP, UNKNOWN, WRONG, dac, episode, keys, value
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedJudge, passage, prompt_of, said

from rolecast.methods.base import DOCUMENTS
from rolecast.methods.dac.method import AGAIN, FURTHER
from rolecast.rollout.render import Renderer
from rolecast.types import Action, Gold, Observation, Passage, Question, Trajectory


def searches(t: Trajectory) -> list[str]:
    return [turn.text for thread in t.threads_of("searcher") for turn in thread.turns[1:] if isinstance(turn, Observation)]


# The loop


def test_one_transcript_for_the_searcher_and_one_prompt_for_the_generator(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT}, phase="eval")
    searcher, generator = t.threads[:2]
    assert [type(turn) for turn in searcher.turns] == [Observation, Action] * 1 + [Observation, Action] * 2
    assert searches(t) == [f"\n<information> {fact.sentence}</information>\n" for fact in (MENTOR, EMPLOYER)]
    assert engine.requests[2].ids == tuple(token for turn in searcher.turns[:5] for token in turn.ids)
    assert prompt_of(generator).count(MENTOR.sentence) == prompt_of(generator).count(EMPLOYER.sentence) == 1
    assert ([thread.slot for thread in t.threads[:2]], t.answer, t.searches, t.status) == (["searcher", "generator"], RIGHT, 2, "ok")
    assert retriever.asked == [(MENTOR.query, 3), (EMPLOYER.query, 3)]


@pytest.mark.parametrize("turns", [1, 2])
def test_the_last_search_is_not_followed_by_a_turn(renderer: Renderer, turns: int) -> None:
    t, engine, _ = episode(renderer, [FIRST] * turns, {"*": RIGHT}, dac(max_turns=turns), phase="eval")
    assert (t.searches, engine.speakers[: turns + 1]) == (turns, ["searcher"] * turns + ["generator"])


def test_the_default_is_four_searches_of_three_passages_and_five_answers() -> None:
    c = dac().config
    assert (c.max_turns, c.k, type(c)().generator_samples, c.noise_from, c.noise, c.clip) == (4, 3, 5, 15, 3, 0.2)


@pytest.mark.parametrize("reply", [BROKEN, "nonsense", said("search", " "), "<stop>", f"<think> a</think><search> b</search>{BROKEN}"])
def test_a_turn_that_is_neither_search_nor_stop_is_asked_again(renderer: Renderer, reply: str) -> None:
    t, _, _ = episode(renderer, [reply, FIRST, STOP], {"*": RIGHT}, phase="eval")
    first = t.threads_of("searcher")[0].actions[0]
    if reply.startswith("<think> a"):  # what comes after the stop string is cut: the search counts
        assert first.valid
    else:
        assert (first.valid, searches(t)[0]) == (False, AGAIN)
    assert (t.status, t.answer) == ("ok", RIGHT)


def test_broken_turns_are_used_up_and_earn_nothing(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [BROKEN] * 4, {"*": UNKNOWN}, dac(augmentation=False))
    assert (t.status, t.searches, retriever.asked, engine.speakers[:5]) == ("ok", 0, [], ["searcher"] * 4 + ["generator"])
    assert [unit.reward for unit in dac().credit([t]) if unit.objective == "searcher"] == [0] * 4


def test_an_answer_that_broke_its_form_is_wrong_and_no_abstention(renderer: Renderer) -> None:
    bare = "<answer> Kel Dax</answer>"  # without its thoughts
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT, "": bare, "prefix=2": bare})
    action = t.threads_of("generator")[0].actions[0]
    assert (t.answer, t.status, action.valid) == (None, "ok", False)
    assert (value(t, "abstained", action.id), value(t, "right", action.id)) == (0, 0)
    earned = {unit.id: unit.reward for unit in dac().credit([t])}
    assert earned[action.id] == 0
    assert [earned[action.id] for action in t.threads_of("searcher")[0].actions] == [0, 1, 0]  # the generator's fault is not the searcher's


def test_another_tag_of_thoughts(renderer: Renderer) -> None:
    method = dac(think="reason", prompts="instruct")
    assert "<reason>" in method.tags
    assert {"<stop>", "<information>", "<search>"} <= method.tags
    lines = [line.replace("think>", "reason>") for line in (FIRST, STOP)]
    t, _, _ = episode(renderer, lines, {"*": said("answer", RIGHT).replace("think>", "reason>")}, method, phase="eval")
    assert all(action.valid for action in t.actions)
    assert all("<reason>" in prompt_of(thread) and "<think>" not in prompt_of(thread) for thread in t.threads)
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": RIGHT}, dac(), phase="eval")
    assert all(action.valid for action in t.actions)


def test_evidence_is_each_passage_once(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [FIRST, FIRST, SECOND, FIRST], {"*": RIGHT}, phase="eval")
    assert prompt_of(t.threads_of("generator")[0]).count(MENTOR.sentence) == 1


# Abstention, by phase


@pytest.mark.parametrize("style", ["compact", "instruct"])
@pytest.mark.parametrize(
    ("abstention", "phase", "may"),
    [("train", "train", True), ("train", "eval", False), ("train", "serve", False), ("always", "train", True), ("always", "serve", True),
     ("never", "train", False), ("never", "eval", False)],
)  # fmt: skip
def test_who_may_say_unknown(renderer: Renderer, abstention: str, phase: str, may: bool, style: str) -> None:
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": RIGHT}, dac(abstention=abstention, prompts=style), phase=phase)
    own = prompt_of(t.threads_of("generator")[0])
    assert (UNKNOWN in own) is may


@pytest.mark.parametrize(("abstention", "key", "probed"), [("train", "abstaining", True), ("always", "forced", False)])
def test_an_evaluation_asks_the_generator_once_more_with_the_other_prompt(
    renderer: Renderer, abstention: str, key: str, probed: bool
) -> None:
    method = dac(abstention=abstention)
    t, engine, _ = episode(renderer, [FIRST, STOP], {"*": RIGHT, key: UNKNOWN}, method, phase="eval")
    assert keys(t) == [key]
    own, other = map(prompt_of, t.threads[1:])
    assert own.replace("\n or unknown", "") == other.replace("\n or unknown", "")
    assert (UNKNOWN in own, UNKNOWN in other) == (not probed, probed)
    assert (t.answer, engine.requests[-1].sampling.temperature) == (RIGHT, 0.0)


@pytest.mark.parametrize("phase", ["serve", "eval"])
def test_nothing_is_probed_in_serving_nor_where_nobody_may_abstain(renderer: Renderer, phase: str) -> None:
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": RIGHT}, dac(abstention="never" if phase == "eval" else "train"), phase=phase)
    assert keys(t) == []


def test_an_abstention_may_ask_for_more_searches(renderer: Renderer) -> None:
    """Two more: the first after a stop, the second after that; then it has to answer."""
    method = dac(further_searches=2)
    t, engine, _ = episode(renderer, [FIRST, STOP, SECOND, STOP], {"*": UNKNOWN}, method, phase="serve")
    assert engine.speakers == ["searcher", "searcher", "generator", "searcher", "generator", "searcher", "generator"]
    assert searches(t).count(FURTHER) == 2
    prompts = [prompt_of(thread) for thread in t.threads_of("generator")]
    assert [UNKNOWN in prompt for prompt in prompts] == [True, True, False]
    assert [EMPLOYER.sentence in prompt for prompt in prompts] == [False, True, True]


def test_no_search_is_asked_for_after_an_answer_nor_in_training(renderer: Renderer) -> None:
    method = dac(further_searches=2)
    t, engine, _ = episode(renderer, [FIRST, STOP], {"*": RIGHT}, method, phase="serve")
    assert (engine.speakers, t.answer) == (["searcher", "searcher", "generator"], RIGHT)
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": UNKNOWN}, method)
    assert (t.searches, searches(t).count(FURTHER)) == (1, 0)


def test_given_documents_are_answered_from_without_a_search(renderer: Renderer) -> None:
    question = Question("q2", TWO_HOPS.text, TWO_HOPS.gold, "chain", 2, {DOCUMENTS: [EMPLOYER.sentence, MENTOR.sentence]})
    by_id = {fact.sentence: passage(fact) for fact in (MENTOR, EMPLOYER)}

    async def fetch(self: Any, ids: Any) -> list[Passage]:
        return [by_id[id] for id in ids]

    import scripted

    original, scripted.TableRetriever.fetch = scripted.TableRetriever.fetch, fetch  # type: ignore[method-assign]
    try:
        t, engine, retriever = episode(renderer, [], {"*": RIGHT}, question=question, phase="eval")
    finally:
        scripted.TableRetriever.fetch = original  # type: ignore[method-assign]
    own = prompt_of(t.threads[0])
    assert own.index(EMPLOYER.sentence) < own.index(MENTOR.sentence)
    assert (engine.speakers, t.searches, retriever.asked, t.answer) == (["generator", "generator"], 0, [], RIGHT)
    assert (t.retrieved, value(t, "sufficient")) == ([EMPLOYER.sentence, MENTOR.sentence], 1)


# Probes of training


def test_what_is_probed_in_training(renderer: Renderer) -> None:
    """Nothing is asked of evidence without the answer: its value is 0. The turn that only stops finds nothing new."""
    t, engine, retriever = episode(renderer, [WRONG, FIRST, SECOND, MORE], {"*": RIGHT})
    assert keys(t) == ["sample=1", "sample=2", "prefix=3", "prefix=4", "noisy=0", "noisy=1", "noisy=2"]
    threads = {thread.key: thread for thread in t.threads_of("generator", probe=True)}
    own = prompt_of(t.threads_of("generator")[0])
    assert prompt_of(threads["sample=1"]) == prompt_of(threads["prefix=4"]) == own
    assert NOISE[14].text not in prompt_of(threads["prefix=3"])
    assert EMPLOYER.sentence in prompt_of(threads["prefix=3"])
    heat = {request.key.rpartition("#")[0]: request.sampling.temperature for request in engine.requests}
    assert {thread.key: heat[thread.id] for thread in threads.values()} == {
        key: 0.0 if key.startswith("prefix") else 1.0 for key in threads
    }
    assert all(UNKNOWN in prompt_of(thread) for thread in threads.values())
    assert retriever.asked[-1] == (TWO_HOPS.text, 15)
    assert t.searches == 4  # the probe's is none of the episode's
    assert "noise13" not in t.retrieved


def test_noise_is_from_the_end_of_the_questions_ranking_without_what_is_held(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT}, dac(noise=2))
    [noisy] = {prompt_of(thread) for thread in t.threads if thread.key.startswith("noisy")}
    own = prompt_of(t.threads_of("generator")[0])
    assert noisy.startswith(own.partition(EMPLOYER.sentence)[0])  # the evidence first, as it was
    assert [n for n in range(15) if NOISE[n].text in noisy] == [12, 13]
    assert noisy.index(NOISE[13].text) < noisy.index(NOISE[12].text)
    assert noisy.count(MENTOR.sentence) == 1


@pytest.mark.parametrize("lines", [[FIRST, STOP], [STOP]])
def test_insufficient_evidence_is_not_augmented(renderer: Renderer, lines: list[str]) -> None:
    t, _, retriever = episode(renderer, lines, {"*": UNKNOWN})
    assert keys(t) == ["sample=1", "sample=2"]
    assert (TWO_HOPS.text, 15) not in retriever.asked


@pytest.mark.parametrize(
    ("options", "probed"),
    [
        ({"augmentation": False}, ["sample=1", "sample=2", "prefix=2", "prefix=3"]),
        ({"generator_samples": 2}, ["sample=1", "prefix=2", "prefix=3", "noisy=0", "noisy=1"]),
        ({"turn_rewards": False, "augmentation": False}, ["sample=1", "sample=2", "prefix=3"]),
        ({"searcher_reward": "sufficiency", "augmentation": False}, ["sample=1", "sample=2"]),
        ({"searcher_reward": "answer", "augmentation": False}, ["sample=1", "sample=2", "prefix=1", "prefix=2", "prefix=3"]),
        ({"prefix_answers": "samples", "augmentation": False}, ["sample=1", "sample=2", "prefix=2=0", "prefix=2=1", "prefix=2=2"]),
        ({"prefix_answers": "samples", "augmentation": False, "turn_rewards": False}, ["sample=1", "sample=2"]),
    ],
)
def test_switches_change_what_is_probed(renderer: Renderer, options: dict[str, Any], probed: list[str]) -> None:
    t, _, _ = episode(renderer, [FIRST, SECOND, MORE, STOP], {"*": RIGHT}, dac(**options))
    assert keys(t) == probed


def test_probes_change_nothing_that_the_episode_did(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, answers = [WRONG, FIRST, SECOND, STOP], {"*": RIGHT}
    with_probes, engine, _ = episode(renderer, lines, answers)
    requests = engine.requests[:5]
    method = dac()
    monkeypatch.setattr(type(method), "probed", frozenset())
    without, engine, _ = episode(renderer, lines, answers, method)
    assert engine.requests == requests  # the same contexts, seeds and draws
    assert without.threads == [thread for thread in with_probes.threads if not thread.probe]
    assert (without.answer, without.searches, without.retrieved) == (with_probes.answer, with_probes.searches, with_probes.retrieved)


# Overflow


def test_a_searcher_without_room_ends_as_length_and_is_not_trained(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, [FIRST], {"*": RIGHT}, max_context=50)
    assert (t.status, t.answer, t.rewards, dac().credit([t]), engine.speakers) == ("length", None, [], [], ["searcher"])


def test_answers_without_room_are_no_samples_and_cost_the_others_nothing(renderer: Renderer) -> None:
    """The noisy prompts do not fit; everything else does."""
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT}, max_context=100, found={**FOUND, TWO_HOPS.text: [LONG]})
    assert t.status == "ok"
    noisy = [thread for thread in t.threads if thread.key.startswith("noisy")]
    assert len(noisy) == 3
    assert not any(thread.actions for thread in noisy)
    units = dac().credit([t])
    assert {unit.baseline for unit in units} == {"g.0:searcher", "g.0:evidence"}
    assert dac(imitation=0.05).examples([t]) == []


def test_a_probe_that_was_cut_says_nothing_and_its_searcher_is_left_out(renderer: Renderer) -> None:
    method = dac(max_tokens=20, augmentation=False)
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT, "prefix=2": "<think> next fact next fact"}, method)
    units = method.credit([t])
    assert {unit.objective for unit in units} == {"generator"}
    long = "<think>" + " next fact" * 10  # as many tokens as it may say: its own fault
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT, "prefix=2": long}, dac(max_tokens=21, augmentation=False))
    assert {unit.objective for unit in dac().credit([t])} == {"generator", "searcher"}


LONG = Passage("long", "Long", " ".join(["one"] * 60))


# Sufficiency


def test_the_answers_words_or_the_gold_passages(renderer: Renderer) -> None:
    """The second fact alone holds the answer's words; only both are all gold passages."""
    lines = [SECOND, FIRST, STOP]
    for by, found in (("string", [1, 1, 1]), ("gold_passages", [0, 1, 1])):
        t, _, _ = episode(renderer, lines, {"*": RIGHT}, dac(sufficiency=by))
        assert [value(t, "sufficient", action.id) for action in t.threads_of("searcher")[0].actions] == found
        assert (value(t, "sufficient"), value(t, "sufficient.string"), value(t, "sufficient.passages")) == (1, 1, 1)
        rewards = [unit.reward for unit in dac(sufficiency=by).credit([t]) if unit.objective == "searcher"]
        assert rewards == ([1, 0, 0] if by == "string" else [0, 1, 0])


YES = Question("q3", "Do Brol Tan and Vrek Stom have the same employer?", Gold(("yes",), passages=(MENTOR.sentence,)), "comparison", 2)
UNKNOWABLE = Question("q4", YES.text, Gold(("yes",)), "comparison", 2)


def test_yes_and_no_go_by_gold_passages(renderer: Renderer) -> None:
    found = {**FOUND, YES.text: NOISE}
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": "yes"}, question=YES, found=found)
    assert value(t, "sufficient") == 1
    assert [unit.reward for unit in dac().credit([t]) if unit.objective == "searcher"] == [1, 0]
    t, _, _ = episode(renderer, [SECOND, STOP], {"*": "unknown"}, question=YES, found=found)
    assert value(t, "sufficient") == 0
    assert {unit.reward for unit in dac().credit([t]) if unit.objective == "generator"} == {1}


def test_a_row_of_which_nobody_can_say_is_left_out_and_counted(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": "yes"}, question=UNKNOWABLE)
    assert value(t, "sufficient") is None
    assert dac().credit([t]) == []
    assert dac().diagnostics([t])["unknown_sufficiency"] == 1
    # Decomp-AR needs no sufficiency for the searcher.
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": "yes"}, dac(searcher_reward="answer"), question=UNKNOWABLE)
    assert [unit.reward for unit in dac(searcher_reward="answer").credit([t])] == [1, 0]


def test_a_judge_is_asked_once_for_each_evidence(renderer: Renderer) -> None:
    judge = ScriptedJudge(dac_sufficient=[0.9, 0.2])
    method = dac(sufficiency="judge")
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT}, method, judge=judge)
    assert [call["documents"] for call in judge.seen["dac.sufficient"]] == [[MENTOR.sentence, EMPLOYER.sentence], [MENTOR.sentence]]
    assert [value(t, "sufficient", action.id) for action in t.threads_of("searcher")[0].actions] == [0, 1, 1]
    assert {"prefix=1", "prefix=2", "noisy=0"} <= set(keys(t))  # it is not known yet what will be found


def test_answers_to_augmented_evidence_that_a_judge_finds_insufficient_are_left_out(renderer: Renderer) -> None:
    method = dac(sufficiency="judge")
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": UNKNOWN}, method, judge=ScriptedJudge(dac_sufficient=[0.0]))
    assert "noisy=0" in keys(t)
    assert {unit.baseline for unit in method.credit([t])} == {"g.0:searcher", "g.0:evidence"}
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": UNKNOWN}, method, judge=ScriptedJudge(dac_sufficient=[None]))
    assert method.credit([t]) == []


def test_the_lexical_judge_wants_every_fact(renderer: Renderer) -> None:
    for lines, found in (([SECOND, STOP], 0), ([SECOND, FIRST, STOP], 1)):
        t, _, _ = episode(renderer, lines, {"*": RIGHT}, dac(sufficiency="judge"))
        assert value(t, "sufficient") == found


def test_a_judge_counts_only_where_it_decides() -> None:
    assert [kind.name for kind in dac(sufficiency="judge").judged] == ["dac.sufficient"]
    assert dac().judged == ()


def test_the_answers_to_score_are_read_as_they_were_when_played(renderer: Renderer) -> None:
    """Other words of the same answer, and what a token carried past the end."""
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": said("answer", "the Kel dax") + "."})
    assert {value(t, "right", action.id) for thread in t.threads if thread.role == "generator" for action in thread.actions} == {1}
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": "Unknown", "noisy=0": OTHER})
    assert value(t, "abstained", t.threads_of("generator")[0].actions[0].id) == 1
