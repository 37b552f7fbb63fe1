"""No teacher shows a language model what is meant for the demo's small one, and the small one's words are as they were."""

from __future__ import annotations

import re

import pytest

from rolecast.methods.registry import find, make_method, read_config
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode

SHORTHAND = ("next fact", "nothing missing", "> keep<", "> nothing<", "> find<")
THINKING = ("decor", "search_r1", "react", "search_o1", "autorefine", "dac", "coda", "ircot", "cot")


def said(name: str, prompts: str, renderer: Renderer) -> list[str]:
    method = make_method(read_config({"name": name, "prompts": prompts}))
    teacher = method.teacher(TeacherErrors())
    episodes = [throwaway_episode(method, teacher, renderer, 3, number, 4096) for number in range(12)]
    assert all(episode.status == "ok" and all(action.valid for action in episode.actions) for episode in episodes)
    return [action.text for episode in episodes for action in episode.actions]


@pytest.mark.parametrize("name", THINKING)
def test_a_language_model_is_shown_sentences(name: str, renderer: Renderer) -> None:
    for text in said(name, "instruct", renderer):
        text = re.sub(r"<(refine|information)>.*?</\1>", "", text)  # where "nothing" is the method's own word
        assert not [words for words in SHORTHAND if words in text], text


@pytest.mark.parametrize("name", ["decor", "search_r1", "react", "search_o1", "autorefine", "dac", "coda"])
def test_the_small_model_learns_its_shorthand(name: str, renderer: Renderer) -> None:
    assert any("next fact" in text for text in said(name, "compact", renderer))


@pytest.mark.parametrize("name", ["decor", "dac"])
def test_the_presets_for_a_language_model_show_it_sentences(name: str) -> None:
    method = find(name)
    assert "prompts: instruct" in method.preset("small_model").read_text()
