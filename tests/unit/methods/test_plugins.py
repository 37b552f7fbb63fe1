"""A method from another distribution: one folder and an entry point."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rolecast.cli.runs import methods
from rolecast.config import RunConfig, load_config, read_json_config
from rolecast.errors import InputError
from rolecast.judge.lexical import LexicalJudge
from rolecast.judge.openai import OpenAIJudge
from rolecast.methods import registry
from rolecast.methods.base import Method, MethodConfig
from rolecast.methods.decor import Decor
from rolecast.ports import Verdict
from rolecast.rollout.remote import RemoteTeam
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import draw_turns
from rolecast.wire.coordinator import RunInfo
from rolecast.wire.judge import JudgeRequest

FOLDER = Path(__file__).parents[2] / "plugins"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with one entry point where Python finds it."""

    def installed(
        name: str = "echo", value: str = "echo_method.method:Echo", release: str = "1.2", distribution: str = "echo-methods"
    ) -> None:
        info = tmp_path / "site" / f"{distribution.replace('-', '_')}-{release}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {release}\n")
        (info / "entry_points.txt").write_text(f"[rolecast.methods]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        registry._plugins.cache_clear()

    monkeypatch.syspath_prepend(str(FOLDER))
    yield installed
    registry._plugins.cache_clear()
    registry._classes.pop("echo", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "echo_method"]:
        del sys.modules[name]


def echo(tmp_path: Path, options: str = "") -> RunConfig:
    (tmp_path / "run.yaml").write_text(f"method: {{name: echo, prompts: compact{options}}}\n")
    return load_config(tmp_path / "run.yaml")


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    methods(as_json=True)
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_its_config_is_read_by_its_own_type_and_comes_back(install: Install, tmp_path: Path) -> None:
    install()
    config = echo(tmp_path, ", shout: true")
    assert config.method.model_dump() == {
        "name": "echo",
        "plugin": "echo-methods==1.2",
        "prompts": "compact",
        "episode_tokens": None,
        "shout": True,
    }
    assert read_json_config(config.model_dump_json()) == config
    assert config.fingerprint != echo(tmp_path).fingerprint
    assert "method.shuot: unknown key" in refusal(lambda: echo(tmp_path, ", shuot: true"))


def test_its_release_is_part_of_what_a_run_is(install: Install, tmp_path: Path) -> None:
    install()
    one = echo(tmp_path)
    other = one.model_copy(update={"method": one.method.model_copy(update={"plugin": "echo-methods==1.3"})})
    assert one.fingerprint != other.fingerprint
    assert registry.release(one.method) == f"{version('rolecast')} + echo-methods==1.2"
    assert registry.release(RunConfig().method) == version("rolecast")


def test_it_is_listed_with_where_it_comes_from(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    assert "echo" not in listed(capsys)
    install()
    rows = listed(capsys)
    assert rows["echo"] == {
        "name": "echo", "origin": "echo-methods 1.2", "trained": False, "switches": {"prompts": "instruct", "episode_tokens": None, "shout": False},
        "roles": [{"name": "echoer", "slot": "shared", "sees": ["question"]}],
    }  # fmt: skip
    assert {name for name, row in rows.items() if row["origin"] == "built-in"} == set(registry._built_in())


def test_rows_of_sft_are_its_own_teachers(install: Install, tmp_path: Path, renderer: Renderer) -> None:
    install()
    method = registry.make_method(echo(tmp_path).method)
    [row] = draw_turns(method, method.teacher(TeacherErrors()), renderer, 0, 0, 1, {}, 512)
    read = renderer.decode([token for token, trained in zip(row.ids, row.trained, strict=True) if not trained])
    said = renderer.decode([token for token, trained in zip(row.ids, row.trained, strict=True) if trained])
    question = read.partition("echo: ")[2].partition("?")[0]
    assert question
    assert said.startswith(f"<answer> {question}?</answer>")


def test_its_kind_is_judged_by_its_own_rule_prompt_and_inputs(install: Install) -> None:
    install()
    given = {"question": "Who?", "said": "Who?"}
    assert asyncio.run(LexicalJudge().judge("echo.echoer", given)) == Verdict(1.0, "repeats")
    assert JudgeRequest(kind="echo.echoer", inputs={**given, "more": 1}).read() == given
    kind = registry.judge_kind("echo.echoer")
    assert kind is not None
    assert kind.parse("Yes.\nScore: 1") == Verdict(1.0, "Yes.")
    found = asyncio.run(OpenAIJudge("http://127.0.0.1:9/v1", "m", patience=0.0).judge("echo.echoer", given))
    assert "ROLECAST_JUDGE_OPENAI_URL" in found.reason  # it was rendered and sent
    for judge in (LexicalJudge(), OpenAIJudge("http://127.0.0.1:9/v1", "m")):
        assert "inputs of 'echo.echoer' lack 'said'" in refusal(
            lambda judge=judge: asyncio.run(judge.judge("echo.echoer", {"question": ""}))
        )
    assert asyncio.run(LexicalJudge().judge("echo.other", given)).score is None


def test_its_preset_is_a_config(install: Install) -> None:
    install()
    assert load_config(Path(str(registry.find("echo").preset()))).method.name == "echo"


@pytest.mark.parametrize(("release", "reason"), [(None, "which is not installed here"), ("1.3", "here it comes from echo-methods 1.3")])
def test_a_run_of_a_plugin_that_is_not_here_is_refused_by_name(install: Install, tmp_path: Path, release: str | None, reason: str) -> None:
    if release is not None:
        install(release=release)
    text = json.dumps({"method": {"name": "echo", "plugin": "echo-methods==1.2", "shout": True}})
    said = f"method echo comes from plugin echo-methods 1.2, {reason}; pip install echo-methods==1.2"
    assert said in refusal(lambda: read_json_config(text))
    info = RunInfo(run="r", attempt=1, config=text, stage="sft", store=str(tmp_path), version=None)
    assert said in refusal(lambda: RemoteTeam.of(info, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path))


def test_an_unknown_method_is_refused_with_those_there_are(tmp_path: Path, install: Install) -> None:
    assert f"run.yaml: method: unknown method 'echo'; known: {', '.join(registry._built_in())}" in refusal(lambda: echo(tmp_path))


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("broken_echo:Echo", "import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("broken_echo:Echo", "raise RuntimeError('one\\ntwo')\n", "RuntimeError: one two"),
        ("broken_echo:Echo", "", "has no attribute 'Echo'"),
        ("broken_echo:Echo", "Echo = 3\n", "TypeError: broken_echo:Echo is no Method class with the name 'echo'"),
    ],
)
def test_a_broken_plugin_stops_only_what_names_it(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, source: str, reason: str
) -> None:
    install(value=value)
    (tmp_path / "site" / "broken_echo.py").write_text(source)
    try:
        text = refusal(lambda: echo(tmp_path))
        assert "method: method echo: its plugin echo-methods 1.2 cannot be loaded: " in text
        assert reason in text
        row = listed(capsys)["echo"]
        assert (row["origin"], set(row)) == ("echo-methods 1.2", {"name", "origin", "broken"})
        assert reason in row["broken"]
        methods()
        assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("echo") and reason in line]
        assert asyncio.run(LexicalJudge().judge("answer", {"question": "", "gold": {"answers": ["x"]}, "prediction": "x"})).score == 1.0
        assert RunConfig().method.name == "decor"
    finally:
        sys.modules.pop("broken_echo", None)


def test_two_plugins_of_one_name_are_none(install: Install, tmp_path: Path) -> None:
    install()
    install(distribution="other-echo", release="2")
    text = refusal(lambda: echo(tmp_path))
    assert "several plugins" in text
    assert "echo-methods 1.2" in text
    assert "other-echo 2" in text


def test_a_plugin_cannot_take_a_built_in_name(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(name="decor")
    assert registry.find("decor") is Decor
    assert RunConfig().method == read_json_config("{}").method == read_json_config('{"method": {"name": "decor"}}').method
    methods(as_json=True)
    rows = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "decor"]
    assert [row["origin"] for row in rows] == ["built-in", "echo-methods 1.2"]
    assert "rolecast's own" in rows[1]["broken"]


class _LoneConfig(MethodConfig):
    name: str = "lone"


class _Lone(Method):
    name = "lone"
    trained = False
    config_type = _LoneConfig

    async def rollout(self, question: Any, env: Any) -> str | None:
        return None


def test_a_method_without_a_teacher_or_presets_says_so() -> None:
    lone = _Lone(_LoneConfig())
    assert "method lone has no teacher: give it one (_Lone.teacher), or set sft.steps to 0" in refusal(
        lambda: lone.teacher(TeacherErrors())
    )
    assert "method lone has no presets" in refusal(_Lone.preset)
    assert "method decor has no preset 'ppo'; it has demo, small_model" in refusal(lambda: Decor.preset("ppo"))
    assert (lone.k, lone.dynamic_sampling) == (0, "off")


def test_what_a_class_declares_must_fit_together() -> None:
    kinds = tuple(Decor.judge_kinds())
    with pytest.raises(InputError, match="give its field `name` the default 'other'"):
        registry.register(type("Other", (_Lone,), {"name": "other"}))
    with pytest.raises(InputError, match=r"judge kind 'decor\.planner' is none of this method; declare lone\.WHAT"):
        registry.register(type("Kinds", (_Lone,), {"judge_kinds": classmethod(lambda cls: kinds)}))
    with pytest.raises(InputError, match=r"judge kind 'lone\.x' is none of this method"):
        registry.register(type("Rules", (_Lone,), {"verdicts": classmethod(lambda cls: {"lone.x": None})}))
    with pytest.raises(InputError, match=r"method decor is rolecast\.methods\.decor\.method\.Decor already"):
        registry.register(type("Decor2", (Decor,), {}))
    assert "lone" not in registry.known()
