"""`rolecast data demonstrate`: what is kept, counted, gone on with, and where a budget ends it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.errors import InputError, NamedStop
from rolecast.methods.direct.method import Direct
from rolecast.ports import Judge, Verdict
from rolecast.rollout.render import Renderer
from rolecast.stages import demonstrate
from rolecast.store.artifact import verify
from rolecast.teachers.demonstrations import read_demonstrations
from rolecast.types import Reward, Trajectory
from tests.endpoint import Endpoint, answering, completion
from tests.tiny import TOKENIZER, save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"id": f"q{n}", "question": f"Who is {n}?", "answers": [f"Kel {n}"], "original_id": f"row-{n}"} for n in range(6)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Teacher:
    """Question 0 is answered well at the third try, 1 always in another form, 2 always wrong, 3 at once, 4 fails, 5 at once."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def reply(self, body: dict[str, Any]) -> Any:
        text = json.dumps(body["messages"])
        n = next(n for n in range(6) if f"Who is {n}?" in text)
        self.asked[n] += 1
        if n == 4:
            return 400
        if n == 1:
            return completion("It is Kel 1")
        right = n in (3, 5) or (n == 0 and self.asked[0] == 3)
        return completion(f"<answer>{f'Kel {n}' if right else 'nobody'}</answer>")


def teaching(endpoint: Endpoint) -> Teacher:
    teacher = Teacher()
    endpoint.replies = [teacher.reply]
    return teacher


def words(url: str, model: Path, data: Path, out: Path, *more: object) -> list[str]:
    basic = ["data", "demonstrate", "--model", url, "--model-name", "them", "--tokenizer", model, "--method", "direct", "--data", data]
    return [str(word) for word in [*basic, "--out", out, *more]]


def command(asked: list[str]) -> str:
    done = CliRunner().invoke(app, asked)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def counts(told: str) -> dict[str, int]:
    rows = [line.strip().partition("  ") for line in told.splitlines() if line.startswith("  ")]
    return {name: int(count.replace(",", "")) for count, _, name in rows}


def test_what_is_right_and_valid_is_kept(tmp_path: Path, model: Path, data: Path) -> None:
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        told = command(words(url, model, data, tmp_path / "out", "--samples", 3))
        found = counts(told)
        assert teacher.asked == {0: 3, 1: 3, 2: 3, 3: 1, 4: 3, 5: 1}
        again = command(words(url, model, data, tmp_path / "out", "--samples", 3))
    assert {name: found[name] for name in ("questions", "of them asked", "episodes", "failed", "valid", "right", "both, kept")} == {
        "questions": 6, "of them asked": 6, "episodes": 14, "failed": 3, "valid": 8, "right": 3, "both, kept": 3,
    }  # fmt: skip
    assert found["turns of answerer"] == 3
    assert "of 14 episodes 8 are valid, 3 right, 3 both: 3 demonstrations teach the form of a reply at most" in told
    assert counts(again)["both, kept"] == 3
    assert teacher.asked[3] == teacher.asked[1] // 3 == 1, "only what failed is asked again"
    assert teacher.asked[4] == 6
    folder = tmp_path / "out" / "demonstrations"
    verify(folder, "demonstrations")
    rows = read_demonstrations(str(folder), Renderer(TOKENIZER, ("answer",)), ["answerer"], 512)
    learned = [TOKENIZER.decode([id for id, flag in zip(row.ids, row.trained, strict=True) if flag]) for row in rows]
    assert sorted(text.replace(" ", "") for text in learned) == ["<answer>Kel0</answer>", "<answer>Kel3</answer>", "<answer>Kel5</answer>"]
    kept = [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]
    assert sorted(row["original_id"] for row in kept) == ["row-0", "row-3", "row-5"]


def test_more_samples_go_on_where_it_ended(tmp_path: Path, model: Path, data: Path) -> None:
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        command(words(url, model, data, tmp_path / "out", "--samples", 1))
        assert teacher.asked[0] == 1
        found = counts(command(words(url, model, data, tmp_path / "out", "--samples", 3)))
    assert (teacher.asked[0], teacher.asked[3], found["both, kept"]) == (3, 1, 3)


def test_more_questions_go_on_where_it_ended_and_the_first_rows_are_the_same(tmp_path: Path, model: Path, data: Path) -> None:
    """Question 0 is kept at its third try, 3 and 5 at once; fewer again give what the first command gave."""
    out, kept = tmp_path / "out", []
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        for n in (4, 6, 4):
            told = command(words(url, model, data, out, "--samples", 3, "-n", n))
            kept.append(((out / "demonstrations" / "turns.jsonl").read_text().splitlines(), counts(told)))
            if n == 4:
                assert teacher.asked == ({0: 3, 1: 3, 2: 3, 3: 1} if len(kept) == 1 else {0: 3, 1: 3, 2: 3, 3: 1, 4: 3, 5: 1})
    (few, first), (more, second), (fewer, third) = kept
    assert [json.loads(line)["id"] for line in more] == ["q0", "q3", "q5"]
    assert few == fewer == more[:2]
    assert [found["questions"] for found in (first, second, third)] == [4, 6, 4]
    assert [found["both, kept"] for found in (first, second, third)] == [2, 3, 2]
    assert first["tokens read and said"] < second["tokens read and said"]
    assert json.loads((out / "demonstrations" / "manifest.json").read_text())["provenance"]["config"]["n"] == 4


def test_a_budget_ends_it_and_a_larger_one_goes_on(tmp_path: Path, model: Path, data: Path) -> None:
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        serial = ("--samples", 3, "--set", "engine.in_flight=1")
        with pytest.raises(NamedStop, match=r"none of 1 episodes is kept: 1 are valid, 0 right, none is both; the budget of 5 tokens"):
            command(words(url, model, data, tmp_path / "out", *serial, "--budget", 5))
        assert teacher.asked == {0: 1}
        told = command(words(url, model, data, tmp_path / "out", *serial, "--budget", 10**6))
    assert counts(told)["both, kept"] == 3
    assert teacher.asked[0] == 3


def test_the_judges_budget_ends_it_too(tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Costly:
        async def judge(self, kind: str, inputs: Any) -> Verdict:
            return Verdict(1.0, tokens=10)

    async def score(self: Direct, trajectory: Trajectory, judge: Judge, embed: Any) -> list[Reward]:
        await judge.judge("answer", {})
        return []

    monkeypatch.setattr(Direct, "score", score)
    monkeypatch.setattr(demonstrate, "open_judge", lambda run: Costly())
    asked = ("--samples", 3, "--set", "engine.in_flight=1", "--set")
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        for _ in range(2):  # the second time nothing is asked
            with pytest.raises(
                NamedStop,
                match=r"the judge's budget of 30 tokens is spent: 1 demonstrations of 1 questions are kept in .*out; give the same",
            ):
                command(words(url, model, data, tmp_path / "out", *asked, "judge.budget=30"))
            assert teacher.asked == {0: 3}
        told = command(words(url, model, data, tmp_path / "out", *asked, "judge.budget=1000"))
    assert counts(told)["both, kept"] == 3


def test_where_the_budget_ends_it_with_some_kept_they_are_written_and_it_says_so(tmp_path: Path, model: Path, data: Path) -> None:
    rows = (data / "questions.jsonl").read_text().splitlines()
    (data / "questions.jsonl").write_text("\n".join([rows[3], rows[2]]) + "\n")
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        told = command(words(url, model, data, tmp_path / "out", "--set", "engine.in_flight=1", "--budget", 5))
    assert teacher.asked == {3: 1}, "nobody is asked once it is spent"
    assert "the budget of 5 tokens is spent; raise it to go on" in told
    assert counts(told)["both, kept"] == 1


def test_another_folder_or_one_without_questions_is_refused_before_anybody_is_asked(tmp_path: Path, model: Path, data: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with answering() as (url, endpoint):
        teacher = teaching(endpoint)
        with pytest.raises(InputError, match=r"mine holds notes\.txt and is no evaluation; name another folder by --out"):
            command(words(url, model, data, tmp_path / "mine"))
        with pytest.raises(InputError, match="holds no questions"):
            command(words(url, model, tmp_path / "mine", tmp_path / "out"))
        (data / "dev.jsonl").write_text("{}")
        with pytest.raises(InputError, match=r"holds dev\.jsonl, questions\.jsonl; name one of these files"):
            command(words(url, model, data, tmp_path / "out"))
        with pytest.raises(InputError, match="gone: no such file or folder"):
            command(words(url, model, tmp_path / "gone", tmp_path / "out"))
    assert not teacher.asked


def test_what_is_refused(tmp_path: Path, model: Path, data: Path) -> None:
    with answering() as (url, endpoint):
        teaching(endpoint)
        command(words(url, model, data, tmp_path / "out"))
        with pytest.raises(InputError, match="was begun with another by"):
            command(words(url, model, data, tmp_path / "out", "--by", "f1"))
        rubric = {"id": "r", "question": "Who is 3?", "rubric": [{"text": "a"}]}
        (data / "questions.jsonl").write_text(json.dumps(rubric) + "\n")
        with pytest.raises(InputError, match="has a rubric and no answer"):
            command(words(url, model, data, tmp_path / "other"))
        endpoint.replies = ["nothing in form"]
        (data / "questions.jsonl").write_text(json.dumps({"id": "q", "question": "Who is 3?", "answers": ["Kel 3"]}) + "\n")
        with pytest.raises(NamedStop, match=r"none of 2 episodes is kept: 0 are valid, 0 right, none is both; take a stronger teacher"):
            command(words(url, model, data, tmp_path / "third", "--samples", 2))
