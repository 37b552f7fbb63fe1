"""`Judge` in this process and over HTTP: the lexical rules give the same verdicts, with the same reasons."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rolecast.errors import InputError, RolecastError
from rolecast.judge.app import make_judge, open_judge
from rolecast.judge.client import HttpJudge
from rolecast.judge.kinds import ANSWER, FRAME
from rolecast.judge.lexical import LexicalJudge
from rolecast.judge.settings import JudgeSettings
from rolecast.ports import Judge, Verdict
from rolecast.types import Gold, Hop
from tests.live import serving

MENTOR = "The mentor of Brol Tan is Vrek Stom."
EMPLOYER = "The employer of Vrek Stom is Kel Dax."
RIVAL = "The rival of Brol Tan is Grel Pon."
CHAIN = (
    Hop("Brol Tan", "mentor", "Vrek Stom", MENTOR, "p1", "mentor of Brol Tan"),
    Hop("Vrek Stom", "employer", "Kel Dax", EMPLOYER, "p2", "employer of Vrek Stom"),
)
GOLD = Gold(("Kel Dax", 'Käl "Dax"'), CHAIN, ("p1", "p2"))
QUESTION = "What is the employer of the mentor of Brol Tan?"

CASES: list[tuple[str, dict[str, Any], float | None]] = [
    ("answer", {"prediction": "kel dax."}, 1.0),
    ("answer", {"prediction": "Käl \"Dax\""}, 1.0),
    ("answer", {"prediction": "Brol Tan"}, 0.0),
    ("answer", {"prediction": ""}, 0.0),
    ("answer", {"prediction": None}, 0.0),
    ("answer", {"prediction": "Kel Dax", "gold": Gold(("Kel Dax",))}, 1.0),
    ("decor.planner", {"content": "mentor of Brol Tan", "memory": "", "queries": []}, 1.0),
    ("decor.planner", {"content": "mentor of Brol Tan", "memory": MENTOR, "queries": []}, -1.0),
    ("decor.planner", {"content": "mentor of Brol Tan", "memory": "", "queries": ["Mentor of Brol Tan"]}, -1.0),
    ("decor.planner", {"content": "employer of Vrek Stom Kel Dax", "memory": "", "queries": []}, -1.0),
    ("decor.planner", {"content": "None", "memory": f"{MENTOR}\n{EMPLOYER}", "queries": ["a"]}, 1.0),
    ("decor.planner", {"content": "None", "memory": "", "queries": []}, -1.0),
    ("decor.planner", {"content": "", "memory": "", "queries": ["ü", "漢字"]}, -1.0),
    ("decor.filter", {"content": MENTOR, "sub_query": "s", "documents": [MENTOR, RIVAL]}, 1.0),
    ("decor.filter", {"content": RIVAL, "sub_query": "s", "documents": [MENTOR, RIVAL]}, -1.0),
    ("decor.filter", {"content": "", "sub_query": "s", "documents": []}, 1.0),
    ("decor.filter", {"content": "something else", "sub_query": "s", "documents": [MENTOR]}, -1.0),
    ("decor.answerer", {"content": "Kel Dax", "memory": ""}, 1.0),
    ("decor.answerer", {"content": "Vrek Stom", "memory": f"{MENTOR}\n{EMPLOYER}"}, -1.0),
    ("decor.answerer", {"content": "Vrek Stom", "memory": MENTOR}, None),
    ("decor.planner", {"content": "x", "memory": "", "queries": [], "gold": Gold(("Kel Dax",))}, None),
    ("mask.update", {"content": "x"}, None),
    ("answer", {"prediction": "Kel Dax", "sub_query": "s", "output": "o", "future": {"rubric": [1, None]}}, 1.0),
]  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(*make_judge(JudgeSettings())) as url:
        yield url


@pytest.fixture(params=["local", "http"])
def judge(request: pytest.FixtureRequest) -> Judge:
    return LexicalJudge() if request.param == "local" else HttpJudge(request.getfixturevalue("url"), patience=1.0)


@pytest.mark.parametrize(("kind", "inputs", "score"), CASES)
def test_verdicts(judge: Judge, kind: str, inputs: dict[str, Any], score: float | None) -> None:
    given = {"question": QUESTION, "gold": GOLD, **inputs}
    found = asyncio.run(judge.judge(kind, given))
    assert found.score == score
    assert found.reason
    assert found == asyncio.run(LexicalJudge().judge(kind, given))


def test_many_at_once(judge: Judge) -> None:
    async def all_of() -> list[Verdict]:
        return await asyncio.gather(*(judge.judge(kind, {"question": QUESTION, "gold": GOLD, **inputs}) for kind, inputs, _ in CASES * 5))

    assert [verdict.score for verdict in asyncio.run(all_of())] == [score for _, _, score in CASES * 5]


@pytest.mark.parametrize(("kind", "lacks"), [("answer", "prediction"), ("decor.planner", "content"), ("decor.filter", "documents")])
def test_a_missing_input_is_named_and_not_made_up(url: str, kind: str, lacks: str) -> None:
    given = {"gold": GOLD, "question": QUESTION, "content": "x", "memory": "", "queries": [], "prediction": ""}
    given |= {"sub_query": "", "documents": []}
    del given[lacks]
    with pytest.raises(InputError, match=f"inputs of '{kind}' lack '{lacks}'"):
        asyncio.run(HttpJudge(url).judge(kind, given))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "answer"},
        {"kind": "", "inputs": {}},
        {"kind": "answer", "inputs": []},
        {"kind": "answer", "inputs": {"gold": {"answers": "Kel Dax"}}},
        {"kind": "answer", "inputs": {"gold": None}},
        {"kind": "decor.filter", "inputs": {"documents": "text"}},
        {"kind": "answer", "inputs": {}, "more": 1},
    ],
)
def test_malformed_requests_are_refused(url: str, body: object) -> None:
    assert httpx.post(f"{url}/v1/judge", json=body).status_code == 400


def test_unscored_is_null_on_the_wire(url: str) -> None:
    reply = httpx.post(f"{url}/v1/judge", json={"kind": "mask.update", "inputs": {"gold": {"answers": ["x"]}}})
    assert reply.json() == {
        "score": None,
        "reason": "the lexical judge has no rule for 'mask.update'",
        "tokens": 0,
        "items": [],
        "levels": None,
    }


def test_a_judge_that_is_not_there_leaves_unscored() -> None:
    found = asyncio.run(HttpJudge("http://127.0.0.1:9", patience=0.0).judge("answer", {}))
    assert found.score is None
    assert "ROLECAST_JUDGE_URL" in found.reason


def test_another_service_at_the_address_is_an_error(url: str) -> None:
    with pytest.raises(
        RolecastError, match="refused POST /v1/judge: 404 there is no POST /elsewhere/v1/judge; this service has GET /v1/judge, POST"
    ):
        asyncio.run(HttpJudge(f"{url}/elsewhere").judge("answer", {}))


def test_verdicts_are_counted_by_known_kinds() -> None:
    with serving(*make_judge(JudgeSettings())) as url:
        for kind in ("answer", "answer", "who.knows"):
            httpx.post(f"{url}/v1/judge", json={"kind": kind, "inputs": {"question": "q", "gold": {"answers": ["x"]}, "prediction": "x"}})
        text = httpx.get(f"{url}/metrics").text
    assert 'rolecast_judge_verdicts_total{kind="answer",scored="true"} 2.0' in text
    assert 'rolecast_judge_verdicts_total{kind="other",scored="false"} 1.0' in text


def test_both_say_who_judges(judge: Judge) -> None:
    info = asyncio.run(judge.info())
    assert (info.model, info.prompts, info.of(["answer"])) == ("lexical", {}, "lexical")


def test_a_model_is_named_with_the_prompts_that_it_is_asked_with() -> None:
    settings = JudgeSettings(judge_backend="openai", judge_openai_url="http://127.0.0.1:9/v1", judge_openai_model="model-a")
    behind = open_judge(settings, {})
    with serving(*make_judge(settings, behind)) as url:
        info = asyncio.run(HttpJudge(url).info())
    assert info == asyncio.run(behind.info())
    assert info.model == "model-a"
    assert info.prompts["answer"] == hashlib.sha256(FRAME.read_bytes() + ANSWER.prompt.read_bytes()).hexdigest()[:12]
    assert {"decor.planner", "decor.filter", "decor.answerer"} <= set(info.prompts)
    assert info.of(["decor.filter", "answer"]) == f"model-a answer:{info.prompts['answer']} decor.filter:{info.prompts['decor.filter']}"


def test_what_does_not_say_who_judges_is_no_judge(url: str) -> None:
    with pytest.raises(RolecastError, match="refused GET /v1/judge: 404"):
        asyncio.run(HttpJudge(f"{url}/elsewhere").info())


class Costly:
    """A judge whose verdicts cost tokens."""

    async def info(self) -> Any: ...

    async def judge(self, kind: str, inputs: Any) -> Verdict:
        return Verdict(1.0, "right", 41)


def test_what_a_verdict_cost_comes_over_the_wire() -> None:
    with serving(*make_judge(JudgeSettings(), Costly())) as url:
        found = asyncio.run(HttpJudge(url).judge("answer", {"question": QUESTION, "gold": GOLD, "prediction": "Kel Dax"}))
    assert found == Verdict(1.0, "right", 41)
