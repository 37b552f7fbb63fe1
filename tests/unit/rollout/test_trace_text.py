"""What `rolecast ask` prints of an episode."""

from __future__ import annotations

from scripted import MENTOR, RIVAL, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, said

from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.search_r1.method import SearchR1, SearchR1Config
from rolecast.rollout.render import Renderer
from rolecast.rollout.trace_text import conversation
from rolecast.types import Trajectory

DOCUMENTS = [passage(MENTOR), passage(RIVAL)]


def decor(renderer: Renderer, **script: list[str]) -> Trajectory:
    method = Decor(DecorConfig(prompts="compact", condenser="extractive", k=2))
    return play(method, TWO_HOPS, ScriptedEngine(renderer, method, script), TableRetriever(DOCUMENTS), renderer, None)


def test_what_was_searched_found_and_kept(renderer: Renderer) -> None:
    episode = decor(
        renderer,
        planner=[said("search", MENTOR.query), said("search", "None")],
        filter=[said("filter", MENTOR.sentence, "keep")],
        answerer=[said("answer", "Vrek Stom")],
    )
    assert conversation(episode).splitlines() == [
        "planner:   thinks next fact",
        "planner:   searches mentor of Brol Tan",
        "found:     Brol Tan: The mentor of Brol Tan is Vrek Stom.",
        "           Brol Tan: The rival of Brol Tan is Grel Pon.",
        "filter:    thinks keep",
        "filter:    keeps The mentor of Brol Tan is Vrek Stom.",
        "planner:   thinks next fact",
        "planner:   searches None",
        "answerer:  thinks next fact",
        "answerer:  answers Vrek Stom",
        "answer:    Vrek Stom",
    ]


def test_documents_of_which_a_method_keeps_the_texts_alone(renderer: Renderer) -> None:
    episode = decor(renderer, planner=[said("search", MENTOR.query), said("search", "None")], filter=[said("filter", "")], answerer=["?"])
    for state in episode.states.values():
        state.documents = [document.text for document in state.documents]
    assert [line for line in conversation(episode).splitlines() if line.startswith(("found:", " "))] == [
        "found:     The mentor of Brol Tan is Vrek Stom.",
        "           The rival of Brol Tan is Grel Pon.",
    ]


def test_a_filter_that_keeps_nothing(renderer: Renderer) -> None:
    episode = decor(
        renderer,
        planner=[said("search", MENTOR.query), said("search", "None")],
        filter=[said("filter", "")],
        answerer=[said("answer", "Kel Dax")],
    )
    assert "filter:    keeps nothing" in conversation(episode).splitlines()


def test_a_reply_that_broke_its_form_is_shown_as_it_is(renderer: Renderer) -> None:
    shown = conversation(decor(renderer, planner=["no idea"]))
    assert shown.splitlines() == ["planner:   no idea  (not in its form)", "answer:    (no answer: the episode ended as format)"]
    shown = conversation(decor(renderer, planner=["well <search> a</search>"]))
    assert shown.splitlines()[0] == "planner:   well <search> a</search>  (not in its form)"


def test_passages_inside_a_transcript(renderer: Renderer) -> None:
    method = SearchR1(SearchR1Config(prompts="compact", k=2))
    script = {"searcher": [said("search", MENTOR.query), "hm", said("answer", "Vrek Stom")]}
    episode = play(method, TWO_HOPS, ScriptedEngine(renderer, method, script), TableRetriever(DOCUMENTS), renderer, None)
    lines = conversation(episode).splitlines()
    at = lines.index("searcher:  searches mentor of Brol Tan")
    assert lines[at + 1 : at + 4] == [
        "found:     The mentor of Brol Tan is Vrek Stom.",
        "           The rival of Brol Tan is Grel Pon.",
        "searcher:  hm  (not in its form)",
    ]


def test_the_left_column_is_marked(renderer: Renderer) -> None:
    shown = conversation(decor(renderer, planner=["no idea"]), lambda text: f"*{text}*")
    assert all(line.startswith("*") for line in shown.splitlines())
