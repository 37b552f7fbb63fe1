"""Evaluation without a run: what is played, kept, gone on with and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.errors import InputError, NamedStop, RolecastError
from rolecast.ports import JudgeInfo, Verdict
from rolecast.rollout.collect import Collector
from rolecast.stages import alone
from rolecast.stages.keeping import Keeper
from rolecast.stages.models import Speaker, config_for
from rolecast.store.artifact import verify
from rolecast.types import Question
from tests.endpoint import answering
from tests.invoking import command
from tests.tiny import save_tiny

QUESTIONS = [
    {"id": f"q{n}", "question": f"Who is {n}?", "answers": [f"Kel {n}"], "dataset": "one" if n % 3 else "two", "original_id": f"row-{n}"}
    for n in range(9)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return folder


def with_corpus(folder: Path) -> Path:
    rows = [{"id": f"p{n}", "title": f"Kel {n}", "text": f"Kel {n} is {n}."} for n in range(6)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def asked_for(body: dict[str, Any]) -> str:
    """The number of the question that is in a prompt."""
    text = json.dumps(body["messages"])
    return next(str(n) for n in range(9) if f"Who is {n}?" in text)


def reply(body: dict[str, Any]) -> Any:
    from tests.endpoint import completion

    number = asked_for(body)
    return completion(f"<answer>Kel {number}</answer>" if int(number) % 3 else f"It is Kel {number}")


def outside(url: str, model: Path, data: Path, out: Path) -> list[object]:
    return ["eval", "--model", url, "--model-name", "them", "--tokenizer", model, "--method", "direct", "--data", data, "--out", out]


def test_a_model_directory_in_a_method_that_searches(tmp_path: Path, model: Path, data: Path) -> None:
    out = tmp_path / "out"
    told = command(
        "eval", "--model", model, "--method", "decor", "--data", with_corpus(data), "--out", out, "-n", 4,
        "--set", "method.max_tokens=4", "--set", "method.prompts=compact", "--set", "method.condenser=extractive", "--set", "method.k=2",
    )  # fmt: skip
    folder = out / "evaluation"
    verify(folder, "evaluation")
    result = json.loads((folder / "result.json").read_text())
    assert (result["n"], set(result["by_dataset"])) == (4, {"one", "two"})
    assert result["cost"]["frozen"] > 0
    assert "lenient F1" in told
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert [row["original_id"] for row in rows] == ["row-0", "row-1", "row-2", "row-3"]
    assert [row["dataset"] for row in rows] == ["two", "one", "one", "two"]
    assert len(json.loads((folder / "traces.json").read_text())) == 4


def test_an_endpoint_and_the_lenient_scores_beside(tmp_path: Path, model: Path, data: Path) -> None:
    with answering() as (url, endpoint):
        endpoint.replies = [reply]
        told = command(*outside(url, model, data, tmp_path / "out"))
        again = command(*outside(url, model, data, tmp_path / "out"))
    assert told.endswith(again), "all but the progress"
    assert len(endpoint.bodies) == len(QUESTIONS), "what is there is not asked again"
    result = json.loads((tmp_path / "out" / "evaluation" / "result.json").read_text())
    assert (result["em"], result["lenient_em"], result["reply_cem"]) == pytest.approx((6 / 9, 6 / 9, 1.0))
    assert result["lenient_f1"] == pytest.approx((6 + 3 * 2 / 3) / 9), "Kel 0 in it is Kel 0: 2 of 4 words, 2 of 2"
    assert result["valid"] == pytest.approx(6 / 9)
    assert {name: part["em"] for name, part in result["by_dataset"].items()} == {"one": 1.0, "two": 0.0}
    lines = [line.split() for line in told.splitlines() if line]
    assert [line[0] for line in lines[-7:-4]] == ["one", "two", "all"]
    assert lines[-4][:2] == ["stage", "part"]
    assert [line[:2] for line in lines[-2:]] == [["all", "question"], ["all", "answerer"]]
    times = json.loads((tmp_path / "out" / "evaluation" / "latency.json").read_text())
    assert times["answer"]["n"] == times["roles"]["answerer"]["n"] == 9
    assert 0 < times["roles"]["answerer"]["p50"] <= times["answer"]["p95"]


def test_a_killed_evaluation_goes_on(tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep, kept = Keeper.keep, 0

    def until(self: Keeper, row: Mapping[str, Any], judged: int) -> None:
        nonlocal kept
        kept += 1
        if kept > 4:
            raise RolecastError("killed")
        keep(self, row, judged)

    with answering() as (url, endpoint):
        endpoint.replies = [reply]
        words = outside(url, model, data, tmp_path / "out")
        with monkeypatch.context() as patched:
            patched.setattr(Keeper, "keep", until)
            CliRunner().invoke(app, [str(word) for word in words])
        file = tmp_path / "out" / "played.jsonl"
        assert len(file.read_bytes().splitlines()) == 4
        with file.open("ab") as cut:
            cut.write(b'{"at": 8, "fau')
        done = {json.loads(line)["prediction"]["id"] for line in file.read_bytes().splitlines()[:4]}
        endpoint.bodies.clear()
        command(*words)
        asked = sorted(f"q{asked_for(body)}" for body in endpoint.bodies)
    assert asked == sorted({row["id"] for row in QUESTIONS} - done)
    rows = [json.loads(line) for line in (tmp_path / "out" / "evaluation" / "predictions.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [row["id"] for row in QUESTIONS]


def test_what_failed_is_asked_again(tmp_path: Path, model: Path, data: Path) -> None:
    with answering() as (url, endpoint):
        endpoint.replies = [400]
        words = outside(url, model, data, tmp_path / "out")
        with pytest.raises(RolecastError, match="9 failed"):
            command(*words)
        endpoint.replies = [reply]
        command(*words)
    assert json.loads((tmp_path / "out" / "evaluation" / "result.json").read_text())["status"] == {"ok": 9}


def test_few_questions_are_in_memory(tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are live or next: each is read when one before it has ended."""
    read, kept, most, whole = 0, 0, 0, alone.iter_questions
    keep, play = Keeper.keep, Collector.play_group

    def counted(path: Path) -> Iterator[Question]:
        nonlocal read
        for question in whole(path):
            read += 1
            yield question

    def watched(self: Keeper, row: Mapping[str, Any], judged: int) -> None:
        nonlocal kept
        keep(self, row, judged)
        kept += 1

    async def played(self: Collector, *arguments: Any) -> Any:
        nonlocal most
        most = max(most, read - len(QUESTIONS) - kept)  # all were counted once before
        return await play(self, *arguments)

    monkeypatch.setattr(alone, "iter_questions", counted)
    monkeypatch.setattr(Keeper, "keep", watched)
    monkeypatch.setattr(Collector, "play_group", played)
    with answering() as (url, endpoint):
        endpoint.replies = [reply]
        command(*outside(url, model, data, tmp_path / "out"), "--set", "engine.in_flight=1")
    assert (kept, most) == (9, 2)


def refused(*words: object) -> str:
    with pytest.raises(InputError) as caught:
        command(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_refused(tmp_path: Path, model: Path, data: Path) -> None:
    basic = ["eval", "--model", model, "--data", data, "--out", tmp_path / "out"]
    assert "--model needs --method" in refused(*basic)
    assert "decor searches, and there is no corpus.jsonl beside" in refused(*basic, "--method", "decor")
    assert "is an endpoint: name the model that it serves" in refused(
        "eval", "--model", "http://x/v1", "--method", "direct", "--data", data
    )
    assert "by --tokenizer" in refused("eval", "--model", "http://x/v1", "--model-name", "m", "--method", "direct", "--data", data)
    assert "is a directory: --model-name" in refused(*basic, "--method", "direct", "--model-name", "m")
    assert "no such folder" in refused("eval", "--model", tmp_path / "none", "--method", "direct", "--data", data)
    assert "evaluates without a run" in refused("eval", "runs/x", *basic[1:], "--method", "direct")
    assert "give a RUN to evaluate" in refused("eval")
    assert "--method belongs to --model" in refused("eval", "runs/x", "--method", "direct")
    assert "method.k = 9 is larger than the corpus (6 passages)" in refused(
        *basic, "--method", "naive_rag", "--set", "method.k=9", "--data", with_corpus(data)
    )
    (data / "dev.jsonl").write_text((data / "questions.jsonl").read_text())
    assert "holds dev.jsonl, questions.jsonl; name one of these files" in refused(*basic, "--method", "direct")


def test_another_evaluation_in_the_same_folder_is_refused(tmp_path: Path, model: Path, data: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("mine")
    with answering() as (url, endpoint):
        endpoint.replies = [reply]
        words = outside(url, model, data, tmp_path / "out")
        command(*words)
        assert "was begun with another config" in refused(*words, "-n", 3)
        (data / "questions.jsonl").write_text(json.dumps(QUESTIONS[0]) + "\n")
        assert "was begun with another questions" in refused(*words)
        assert "holds notes and is no evaluation" in refused(*outside(url, model, data, tmp_path / "other"))


def test_a_config_gives_the_rest(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("method: {name: decor, k: 3}\njudge: {model: lexical}\n")
    config = config_for("decor", Speaker(str(model)), file, ["method.max_turns=2"], {"eval": {"n": 5}})
    assert (config.method.model_dump()["k"], config.method.model_dump()["max_turns"], config.eval.n) == (3, 2, 5)
    assert config.model.max_context == 512, "as long as the model reads"
    with pytest.raises(InputError, match="is a config of decor, and --method says direct"):
        config_for("direct", Speaker(str(model)), file, (), {})


def test_a_question_to_a_model_that_no_run_trained(model: Path, data: Path) -> None:
    corpus = with_corpus(data) / "corpus.jsonl"
    with answering() as (url, endpoint):
        endpoint.replies = ["<answer>Kel 1</answer>"]
        words = ["--model", url, "--model-name", "them", "--tokenizer", model, "--method", "naive_rag", "--set", "method.k=2"]
        assert command("ask", "Who is 1?", "--quiet", *words, "--corpus", corpus).strip().splitlines()[-1] == "Kel 1"
        assert "Kel 1 is 1." in json.dumps(endpoint.bodies[0]["messages"]), "it was found in the corpus"
        assert "naive_rag searches, and there is no corpus.jsonl" in refused("ask", "Who is 1?", *words)
        assert "no such file; name the corpus.jsonl" in refused("ask", "Who is 1?", *words, "--corpus", data / "none")
    assert "--model needs --method" in refused("ask", "Who?", "--model", model)
    assert "--model needs a question" in refused("ask", "--model", model)


def test_answers_are_compared_as_the_profile_says(tmp_path: Path, model: Path, data: Path) -> None:
    """TriviaQA's script takes a hyphen for a space."""
    rows = [{"id": "q0", "question": "Who is 0?", "answers": ["Kel-0"]}, {"id": "q1", "question": "Who is 1?", "answers": ["Kel-1"]}]
    (data / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with answering() as (url, endpoint):
        endpoint.replies = [reply]
        command(*outside(url, model, data, tmp_path / "plain"))
        command(*outside(url, model, data, tmp_path / "out"), "--profile", "triviaqa")
        plain, found = (json.loads((tmp_path / of / "evaluation" / "result.json").read_text()) for of in ("plain", "out"))
        assert (plain["em"], plain["lenient_em"], plain["reply_cem"], "profile" in plain) == (0.0, 0.0, 0.0, False)
        assert (found["em"], found["lenient_em"], found["reply_cem"]) == (0.5, 0.5, 1.0)
        assert (found["profile"], found["switches"]) == ("triviaqa", {"rules": "triviaqa"})
        with pytest.raises(InputError, match="begun with another profile"):
            command(*outside(url, model, data, tmp_path / "out"))
        with pytest.raises(InputError, match=r"profile faithful_coda plays otherwise \(batch, temperature, top_p\)"):
            command(*outside(url, model, data, tmp_path / "new"), "--profile", "faithful_coda")


class Costly:
    """A judge whose verdicts cost ten tokens each."""

    asked = 0

    async def info(self) -> JudgeInfo:
        return JudgeInfo("costly")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        Costly.asked += 1
        return Verdict(0.5, tokens=10)


def test_the_judges_budget_ends_it_and_a_larger_one_goes_on(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    rows = [{"id": f"q{n}", "question": f"Who is {n}?", "rubric": [{"text": "says who", "weight": 1.0}]} for n in range(9)]
    (tmp_path / "data" / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(Costly, "asked", 0)
    monkeypatch.setattr(alone, "open_judge", lambda run, kinds: Costly())
    out = tmp_path / "out"
    with answering() as (url, endpoint):
        endpoint.replies = [reply]
        words = [*outside(url, model, tmp_path / "data", out), "--set", "engine.in_flight=1", "--set"]
        # Questions 0, 3 and 6 get no answer, which asks the judge nothing. 1, 2 and 4 spend it; 5 is next by then.
        for _ in range(2):
            with pytest.raises(
                NamedStop,
                match=r"the judge's budget of 25 tokens is spent: [56] of 9 questions are kept in .*out; give the same command with --set",
            ):
                CliRunner().invoke(app, [str(word) for word in [*words, "judge.budget=25"]], catch_exceptions=False)
            assert Costly.asked in (3, 4)
        told = command(*words, "judge.budget=1000")
    assert Costly.asked == 6
    result = json.loads((out / "evaluation" / "result.json").read_text())
    assert (result["headline"], result["rubric"], result["n"], result["cost"]["judge_tokens"]) == (
        "rubric",
        pytest.approx(0.5 * 6 / 9),
        9,
        60,
    )
    assert "rubric" in told
