"""`rolecast agent serve`: its settings, and a run opened from a folder or a bucket."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import MENTOR, TableRetriever, passage

from rolecast.agent.core import Asked
from rolecast.agent.settings import AgentSettings
from rolecast.cli import main
from rolecast.config import DataConfig, RunConfig
from rolecast.data.records import write_corpus, write_questions
from rolecast.errors import ArtifactError, InputError
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.naive_rag import NaiveRag, NaiveRagConfig
from rolecast.methods.one_answer import AnswerState
from rolecast.rollout.env import Env
from rolecast.service.settings import read_settings
from rolecast.stages.inputs import inputs
from rolecast.stages.run import Run, create
from rolecast.stages.serve import open_agent, trained_stage
from rolecast.store.artifact import writing
from rolecast.types import Gold, Question, Stage
from rolecast.weights.settings import ModelConfig
from tests.tiny import TOKENIZER, tiny_model
from tests.weed import S3Server


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


def test_flags_win_over_the_environment() -> None:
    environ = {"ROLECAST_RUN": "s3://bucket/runs/a", "ROLECAST_STAGE": "sft", "ROLECAST_MAX_LIVE": "3", "ROLECAST_RETRIEVER_URL": ""}
    settings = read_settings(AgentSettings, {"run": "runs/b", "stage": None}, environ)
    assert (settings.run, settings.stage, settings.max_live, settings.retriever_url) == ("runs/b", "sft", 3, "")
    assert settings.host == "::"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "rolecast: which run? Name it: `rolecast agent serve RUN`, or set ROLECAST_RUN"),
        (["r", "--max-live", "0"], "rolecast: --max-live (ROLECAST_MAX_LIVE) is '0'"),
        (["r", "--retriever-url", "retriever:8080"], "rolecast: the retriever's address 'retriever:8080' is no http(s) URL"),
        (["/nowhere", "--host", "127.0.0.1", "--port", "0"], "rolecast: /nowhere is not a run"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(monkeypatch, capsys, *arguments).startswith(said)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of `rolecast agent serve` that refuses its arguments."""
    for name in AgentSettings.model_fields:
        monkeypatch.delenv(f"ROLECAST_{name.upper()}", raising=False)
    monkeypatch.setattr(sys, "argv", ["rolecast", "agent", "serve", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    return error


def test_a_stage_that_the_run_does_not_have_is_one_line(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = create(tmp_path / "run", config)
    trained(run, "sft")
    capsys.readouterr()
    error = refused(monkeypatch, capsys, str(run.path), "--stage", "eval", "--host", "127.0.0.1", "--port", "0")
    assert error == f"rolecast: {run.path} has no eval model; it has sft\n"


@pytest.mark.parametrize(("question", "said"), [(" ", "the question is empty"), ("Who is \udcff?", "the question is not valid UTF-8")])
def test_a_question_that_is_none_is_refused(
    question: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rolecast", "ask", question])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"rolecast: {said}\n"


def test_probes_are_answered_before_torch_is_there() -> None:
    code = """
import sys
for name in ("torch", "transformers", "faiss", "bm25s", "sentence_transformers", "kfp", "deepspeed"):
    sys.modules[name] = None
from rolecast.agent.app import make_agent
from rolecast.agent.settings import AgentSettings
make_agent(AgentSettings(run="r"))
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def trained(run: Run, *stages: str) -> None:
    for number, stage in enumerate(stages):
        with writing(run.model(stage), "model", {}) as partial:
            tiny_model(number).save_pretrained(partial)
            TOKENIZER.save_pretrained(partial)
        run.publish(run.model(stage))


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of a method that always retrieves, whatever its model says, and that has both stages."""
    monkeypatch.setattr(NaiveRag, "schedule", lambda self: Decor(DecorConfig()).schedule())
    return RunConfig(name="tiny", method=NaiveRagConfig(k=1, max_tokens=4), model=ModelConfig(max_context=512))


def test_a_run_in_a_bucket_is_served_with_what_it_needs_of_it(
    config: RunConfig, weed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{weed.make_bucket('agent')}/runs/tiny"
    monkeypatch.setenv("ROLECAST_WORKDIR", str(tmp_path / "learner"))
    trained(create(uri, config), "sft", "rl")
    monkeypatch.setenv("ROLECAST_WORKDIR", str(tmp_path / "agent"))
    retriever = TableRetriever([passage(MENTOR)])

    async def ask() -> None:
        agent = open_agent(uri, retriever=retriever)
        assert agent.name == "tiny"
        await agent.start()
        episodes = await asyncio.gather(agent.ask(Asked("Who?")), agent.ask(Asked("Where?")))
        await agent.stop()
        assert all(episode.retrieved == [MENTOR.sentence] and episode.actions for episode in episodes)

    asyncio.run(ask())
    fetched = sorted(path.parent.parent.name for path in (tmp_path / "agent").glob("*/*/model/manifest.json"))
    assert fetched == ["rl"]  # the other stage's model and the index stay where they are


def test_a_stage_that_is_not_trained_is_named(config: RunConfig, tmp_path: Path) -> None:
    run = create(tmp_path / "run", config)
    with pytest.raises(InputError, match="has no trained model yet; run its sft stage first"):
        open_agent(run.path)
    trained(run, "sft")
    with pytest.raises(InputError, match="has no rl model; it has sft"):
        open_agent(run.path, "rl")


def test_of_a_schedule_that_ends_with_a_rollout_stage_the_last_model_is_served(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run", config)
    schedule = (Stage("early", "rollout"), *config.schedule, Stage("plans", "rollout", "rl"))
    with pytest.raises(InputError, match="run its sft stage first"):
        trained_stage(run, schedule, None)
    trained(run, "sft")
    with writing(run.model("plans"), "model", {}):  # of another schedule, so to speak
        pass
    assert trained_stage(run, schedule, None) == "sft"


def test_a_damaged_model_is_not_served(config: RunConfig, tmp_path: Path) -> None:
    run = create(tmp_path / "run", config)
    trained(run, "sft")
    (run.model("sft") / "config.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"config\.json"):
        open_agent(run.path)


@pytest.fixture
def asked(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """`rolecast ask` about a run with a team and test questions: what it prints on stdout and on stderr."""
    write_questions(
        tmp_path / "test.jsonl", [Question(f"q{n}", f"Who is number {n}?", Gold(("x",)), hops=hops) for n, hops in enumerate(HOPS)]
    )
    write_corpus(tmp_path / "corpus.jsonl", [passage(MENTOR)])
    files = {name: str(tmp_path / "test.jsonl") for name in ("train", "dev", "test")}
    data = DataConfig(world=None, corpus=str(tmp_path / "corpus.jsonl"), **files)
    run = create(tmp_path / "run", config.model_copy(update={"data": data}))
    inputs(run)
    trained(run, "sft", "rl")

    def ask(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["rolecast", "ask", *arguments, "--run", str(run.path)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        out, err = capsys.readouterr()
        assert bool(ended.value.code) == err.startswith("rolecast: ")
        return out, err

    return ask


HOPS = (2, 2, 1, 1, 3)


def test_without_a_question_some_of_the_test_set_are_proposed(asked: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    out, err = asked()
    assert out.splitlines() == ["Who is number 2?", "Who is number 0?", "Who is number 4?"]  # one of each number of hops
    assert f"`rolecast ask --run {tmp_path}" in err  # of another run than the demo's


def test_quiet_prints_the_answer_alone(asked: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(self: NaiveRag, env: Env, state: AnswerState) -> str | None:
        return answer

    monkeypatch.setattr(NaiveRag, "answer", answered)
    answer: str | None = "Kel Dax"
    assert asked("Who?", "--quiet") == ("Kel Dax\n", "")
    assert asked("Who?")[0].splitlines()[-1] == "answer:    Kel Dax"
    answer = None
    assert asked("Who?", "-q") == ("", "rolecast: no answer: the last reply holds none\n")


def test_in_a_pipe_the_way_to_the_answer_is_plain(asked: Callable[..., tuple[str, str]]) -> None:
    out, _ = asked("Who is the mentor of Brol Tan?")
    assert "\x1b" not in out
    assert out.startswith(f"found:     {MENTOR.subject}: {MENTOR.sentence}")
