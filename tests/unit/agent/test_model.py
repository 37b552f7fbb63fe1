"""KServe's protocols: what v1 and v2 clients send and get, and what is refused."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from teams import OneLine, opened

from rolecast.agent.app import make_agent
from rolecast.agent.settings import AgentSettings
from rolecast.errors import InputError
from rolecast.rollout.render import Renderer
from tests.live import serving


@pytest.fixture(scope="module")
def url(renderer: Renderer) -> Iterator[str]:
    engine = OneLine(renderer)
    engine.gate.set()
    with serving(*make_agent(AgentSettings(run="r", model_name="served", max_live=2, max_waiting=4), opened(engine))) as url:
        yield url


def tensor(data: object, shape: list[int], **more: object) -> dict[str, object]:
    return {"name": "question", "datatype": "BYTES", "shape": shape, "data": data, **more}


def test_one_list_of_models_for_openai_and_kserve(url: str) -> None:
    listed = httpx.get(f"{url}/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["served"] == listed["models"]
    one = httpx.get(f"{url}/v1/models/served").json()
    assert one == {"id": "served", "object": "model", "created": 0, "owned_by": "rolecast", "name": "served", "ready": True}
    missing = httpx.get(f"{url}/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded"])
def test_v1_predicts_in_the_order_of_the_instances(url: str, content_type: str) -> None:
    body = json.dumps({"instances": ["Q1?", {"question": "Q2?"}]})
    reply = httpx.post(f"{url}/v1/models/served:predict", content=body, headers={"content-type": content_type})
    assert reply.status_code == 200, reply.text
    predictions = reply.json()["predictions"]
    assert [(p["answer"], p["status"], p["searches"]) for p in predictions] == [("Kel Dax", "ok", 0)] * 2
    asked = [httpx.get(url + p["trace_url"] + ".json").json()["question"] for p in predictions]
    assert asked == ["Q1?", "Q2?"]


def infer(url: str, **body: object) -> Any:
    reply = httpx.post(f"{url}/v2/models/served/infer", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_v2_answers_in_the_shape_of_the_questions(url: str) -> None:
    reply = infer(url, id="7", inputs=[tensor(["Q1?", "Q2?"], [2, 1])])
    assert (reply["id"], reply["model_name"]) == ("7", "served")
    outputs = {output["name"]: (output["datatype"], output["shape"], output["data"]) for output in reply["outputs"]}
    assert outputs == {"answer": ("BYTES", [2, 1], ["Kel Dax"] * 2), "status": ("BYTES", [2, 1], ["ok", "ok"])}
    assert [output["name"] for output in infer(url, inputs=[tensor(["Q?"], [1])], outputs=[{"name": "answer"}])["outputs"]] == ["answer"]


def test_v2_speaks_the_binary_extension(url: str) -> None:
    text = "Où?".encode()
    data = struct.pack("<I", len(text)) + text
    question = {"name": "question", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [question], "outputs": [{"name": "answer", "parameters": {"binary_data": True}}]}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    reply = httpx.post(f"{url}/v2/models/served/infer", content=head + data, headers=headers)
    assert reply.status_code == 200, reply.text
    length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.content[:length])["outputs"][0]["shape"] == [1]
    assert reply.content[length:] == struct.pack("<I", 7) + b"Kel Dax"


def test_v2_says_what_it_takes_and_gives(url: str) -> None:
    told = httpx.get(f"{url}/v2/models/served").json()
    assert told["inputs"] == [{"name": "question", "datatype": "BYTES", "shape": [-1]}]
    assert [output["name"] for output in told["outputs"]] == ["answer", "status"]
    assert httpx.get(f"{url}/v2/models/served/ready").json() == {"name": "served", "ready": True}
    assert httpx.get(f"{url}/v2/health/ready").json() == {"ready": True}
    assert httpx.get(f"{url}/v2").json()["name"] == "rolecast"


V1_FAULTS: list[tuple[str, bytes, int]] = [
    ("/v1/models/served:predict", b"{", 400),
    ("/v1/models/served:predict", b"[]", 400),
    ("/v1/models/served:predict", b'{"instances": []}', 400),
    ("/v1/models/served:predict", b'{"instances": {"a": 1}}', 400),
    ("/v1/models/served:predict", b'{"instances": [1]}', 400),
    ("/v1/models/served:predict", b'{"instances": [{"text": "x"}]}', 400),
    ("/v1/models/served:predict", b'{"instances": [" "]}', 400),
    ("/v1/models/served:predict", json.dumps({"instances": ["x"] * 7}).encode(), 400),
    ("/v1/models/other:predict", b'{"instances": ["x"]}', 404),
    ("/v1/models/served:explain", b'{"instances": ["x"]}', 501),
]
V2_INPUTS: list[tuple[dict[str, object], int]] = [
    ({"inputs": []}, 400),
    ({"inputs": [tensor(["x"], [1], name="text")]}, 400),
    ({"inputs": [tensor(["x"], [1]), tensor(["x"], [1])]}, 400),
    ({"inputs": [tensor([1], [1], datatype="INT32")]}, 400),
    ({"inputs": [tensor([1.0], [1], datatype="FP16")]}, 400),
    ({"inputs": [tensor(["x"], [3])]}, 400),
    ({"inputs": [tensor([1], [1])]}, 400),
    ({"inputs": [tensor([], [0])]}, 400),
    ({"inputs": [tensor([["x"], ["y", "z"]], [2])]}, 400),
    ({"inputs": [tensor(["x"], [1])], "outputs": [{"name": "score"}]}, 400),
    ({"inputs": [tensor(["x"], ["one"])]}, 400),  # type: ignore[list-item]
    ({"inputs": [tensor([""], [1])]}, 400),
    ({}, 400),
]
V2_FAULTS = [("/v2/models/served/infer", json.dumps(body).encode(), status) for body, status in V2_INPUTS]
OTHERS = [
    ("/v2/models/other/infer", json.dumps({"inputs": [tensor(["x"], [1])]}).encode(), 404),
    ("/v2/models/served/versions/2/infer", json.dumps({"inputs": [tensor(["x"], [1])]}).encode(), 501),
    ("/v2/repository/models/served/unload", b"", 405),
    ("/v2/repository/models/served/load", b"", 405),
]


@pytest.mark.parametrize(("path", "body", "status"), [*V1_FAULTS, *V2_FAULTS, *OTHERS])
def test_what_is_wrong_is_one_line(url: str, path: str, body: bytes, status: int) -> None:
    reply = httpx.post(url + path, content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json().keys()) == (status, {"error"}), reply.text
    assert "\n" not in reply.json()["error"]
    assert httpx.get(f"{url}/v2/models/served/ready").json()["ready"]


@pytest.mark.parametrize(("length", "body"), [("x", b"{}"), ("2", b"{}"), ("99", b"x"), ("-1", b"{}"), ("0", b"{}")])
def test_a_binary_request_that_cannot_be_read_is_the_clients_fault(url: str, length: str, body: bytes) -> None:
    headers = {"inference-header-content-length": length, "content-type": "application/octet-stream"}
    reply = httpx.post(f"{url}/v2/models/served/infer", content=body, headers=headers)
    assert reply.status_code == 400, reply.text


def test_half_a_surrogate_pair_is_refused_before_it_is_played(url: str) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    reply = httpx.post(f"{url}/v1/models/served:predict", content=b'{"instances": ["\\ud800?"]}', headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (400, "the question holds half of a surrogate pair; send whole characters")


def test_without_kserve_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rolecast.agent.model", raising=False)
    monkeypatch.setitem(sys.modules, "kserve", None)
    with pytest.raises(InputError, match=r"^kserve is not installed; .*pip install .*\[agent\]'"):
        make_agent(AgentSettings(run="r"))
