"""The demo's tokenizer: any text comes back, and what the world says is short."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.rollout.render import Renderer
from rolecast.world.grammar import RELATIONS, Fact, lexicon
from rolecast.world.names import SYLLABLES, draw_name
from rolecast.world.tokenizer import CHAT, EOS, PAD, ROLE_WORDS, TAGS, UNK, demo_tokenizer

RENDERER = Renderer(demo_tokenizer())
SPOKEN = st.sampled_from(
    [*TAGS, *CHAT, " mentor", "mentor", " Brol", ". ", "\n", "  ", "<", "</", "é", "日本", "\U0001f98a", "\x00", "<0x41>"]
)


@given(st.text(max_size=80))
def test_any_text_comes_back(text: str) -> None:
    assert RENDERER.decode(RENDERER.encode(text)) == text


@given(st.lists(SPOKEN, max_size=12).map("".join))
def test_protocol_and_odd_characters_come_back_in_any_mixture(text: str) -> None:
    assert RENDERER.decode(RENDERER.encode(text)) == text


@given(st.integers(0, 10**9).map(random.Random), st.sampled_from(sorted(RELATIONS)))
def test_facts_about_names_never_seen_take_one_token_a_word(rng: random.Random, relation: str) -> None:
    fact = Fact(draw_name(rng), relation, draw_name(rng))
    ids = RENDERER.encode(f" {fact.sentence}")
    assert len(ids) == 9
    assert RENDERER.decode(ids) == f" {fact.sentence}"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<"), max_size=40))
def test_no_text_is_unknown(text: str) -> None:
    assert RENDERER.tokenizer.unk_token_id not in RENDERER.encode(text)


@pytest.mark.parametrize("name", ["Zworb Quilf", "Ælfþryþ", "李 明", "O'Hara-Smith", "", "\U0001f98a"])
def test_names_outside_the_inventory_come_back(name: str) -> None:
    text = f"The mentor of {name} is {name}."
    assert RENDERER.decode(RENDERER.encode(text)) == text


@pytest.mark.parametrize("tag", [*TAGS, *CHAT, PAD, EOS, UNK])
def test_tags_are_one_token(tag: str) -> None:
    assert len(RENDERER.encode(tag)) == 1
    assert len(RENDERER.encode(f"one{tag}one")) == 3


def test_words_and_syllables_are_one_token_after_a_space() -> None:
    for word in {*lexicon(), *ROLE_WORDS, *SYLLABLES}:
        assert len(RENDERER.encode(f" {word}")) == 1, word


def test_ids_are_distinct_and_special_tokens_come_first() -> None:
    tokenizer = demo_tokenizer()
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(len(tokenizer)))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)


def test_the_same_words_give_the_same_tokenizer() -> None:
    assert Renderer(demo_tokenizer()).fingerprint() == RENDERER.fingerprint()
    assert Renderer(demo_tokenizer(["ostrich"])).fingerprint() != RENDERER.fingerprint()


def test_more_words_may_be_known() -> None:
    assert len(RENDERER.encode(" ostrich")) > 1
    assert len(Renderer(demo_tokenizer(["ostrich"])).encode(" ostrich")) == 1


def test_a_methods_tags_are_one_token_each_and_leave_the_others_where_they_are() -> None:
    ours, theirs = demo_tokenizer(), demo_tokenizer(tags=["</task>", "<task>", *TAGS])
    assert len(theirs) == len(ours) + 2
    assert [len(Renderer(theirs).encode(tag)) for tag in ("<task>", "</task>", *TAGS)] == [1] * (2 + len(TAGS))
    assert {word: theirs.get_vocab()[word] for word in ours.get_vocab()} == ours.get_vocab()


def test_a_prompt_opens_the_assistants_turn() -> None:
    ids, text = RENDERER.prompt([{"role": "system", "content": "find"}, {"role": "user", "content": "one fact"}])
    assert text == "<|system|>find<|user|>one fact<|assistant|>"
    assert RENDERER.decode(ids) == text
