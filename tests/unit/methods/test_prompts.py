"""A method's prompts are looked at when its config is read: what is missing or cannot work is one line, before any work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from rolecast.config import make_config
from rolecast.errors import InputError
from rolecast.methods import registry
from rolecast.methods.base import Method, MethodConfig
from rolecast.methods.registry import known, make_method, register
from rolecast.rollout.env import Env
from rolecast.types import Question, Role


class MuteConfig(MethodConfig):
    name: Literal["mute"] = "mute"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package that has a method `mute` of one role."""
    (tmp_path / "mute_method" / "prompts").mkdir(parents=True)
    (tmp_path / "mute_method" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "mute_method"
    registry._classes.pop("mute", None)
    sys.modules.pop("mute_method", None)


def method(folder: Path, sees: frozenset[str] = frozenset({"question"})) -> type[Method]:
    import mute_method  # type: ignore[import-not-found]

    class Mute(Method):
        name = "mute"
        trained = False
        config_type = MuteConfig

        def __init__(self, config: MethodConfig) -> None:
            super().__init__(config)
            self.roles = {"speaker": Role("speaker", sees, ("</answer>",), 8)}

        async def rollout(self, question: Question, env: Env) -> str | None:
            return None

    Mute.__module__ = mute_method.__name__
    return register(Mute)


def refusal(folder: Path, **options: Any) -> str:
    method(folder)
    with pytest.raises(InputError) as caught:
        make_config({"method": {"name": "mute", **options}}, "here")
    return str(caught.value)


def test_a_role_without_a_prompt_is_named(folder: Path) -> None:
    assert "method mute has no prompts/speaker.jinja in the folder of mute_method, which tells the role what to do" in refusal(folder)


@pytest.mark.parametrize("style", ["instruct", "compact"])
def test_one_prompt_may_serve_both_styles_and_a_styles_own_goes_before_it(folder: Path, style: Any) -> None:
    made = method(folder)(MuteConfig(prompts=style))
    (folder / "prompts" / "speaker.jinja").write_text("[user]\nin <answer> both {{ question }}\n")
    state = Question("q", "Who?", None)  # type: ignore[arg-type]  # its field `text` is not seen
    role = made.roles["speaker"]
    assert made.messages(role, _state("Who?")) == [{"role": "user", "content": "in <answer> both Who?"}]
    assert made.tags == {"<answer>", "</answer>"}
    assert not hasattr(state, "question")
    with pytest.raises(InputError, match="method mute: role speaker sees 'question', which its state, Question, does not have"):
        made.messages(role, state)


def test_a_styles_own_prompt_goes_first(folder: Path) -> None:
    (folder / "prompts" / "compact").mkdir()
    (folder / "prompts" / "speaker.jinja").write_text("[user]\nboth\n")
    (folder / "prompts" / "compact" / "speaker.jinja").write_text("[user]\nown\n")
    make = method(folder)
    said = {
        style: make(MuteConfig(prompts=style)).messages(make(MuteConfig()).roles["speaker"], _state(""))
        for style in ("compact", "instruct")
    }
    assert {style: message["content"] for style, [message] in said.items()} == {"compact": "own", "instruct": "both"}


def _state(text: str) -> Any:
    state = ModuleType("state")
    state.question = text  # type: ignore[attr-defined]
    return state


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("[user]\n{{ documents }}", "the prompt of speaker names 'documents', which the role does not see; it sees question"),
        ("[user]\n{% for x in question %}", "the prompt of speaker cannot be read: "),
        ("{{ question }}", "the prompt of speaker cannot be read: method mute, prompts/instruct/speaker.jinja: begin it with a line"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused(folder: Path, source: str, reason: str) -> None:
    (folder / "prompts" / "speaker.jinja").write_text(source)
    text = refusal(folder)
    assert reason in text
    assert "\n" not in text


def test_what_a_template_sets_itself_is_no_field(folder: Path) -> None:
    (folder / "prompts" / "speaker.jinja").write_text(
        "[user]\n{% set n = 1 %}{% for c in question %}{{ loop.index + n }}{{ c }}{% endfor %}"
    )
    method(folder)
    assert make_method(MuteConfig()).name == "mute"


def test_a_folder_of_this_package_that_brings_no_method_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mime").mkdir()
    (tmp_path / "mime" / "__init__.py").write_text("")
    monkeypatch.setattr(registry.package, "__path__", [*registry.package.__path__, str(tmp_path)])
    registry._built_in.cache_clear()
    try:
        with pytest.raises(InputError, match=r"the folder methods/mime brings no method 'mime': import the class in its __init__\.py"):
            known()
    finally:
        monkeypatch.undo()
        registry._built_in.cache_clear()
        sys.modules.pop("rolecast.methods.mime", None)
    assert "mime" not in known()
