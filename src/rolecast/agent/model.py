"""The team as a `kserve.Model`, with KServe's v1 and v2 routes. Importing this needs the extra `agent`.

KServe's `ModelServer` is left out: it configures logging, takes the process's signals and has probes, metrics and draining of its
own, where every Rolecast service has the ones of `rolecast.service`. Its routers, which are the protocol, are registered on our app.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelRepository  # type: ignore[import-untyped]
from kserve.errors import InferenceError, InvalidInput, ModelNotFound, ModelNotReady  # type: ignore[import-untyped]
from kserve.protocol.dataplane import DataPlane  # type: ignore[import-untyped]
from kserve.protocol.rest.v1_endpoints import register_v1_endpoints  # type: ignore[import-untyped]
from kserve.protocol.rest.v2_endpoints import register_v2_endpoints  # type: ignore[import-untyped]

from rolecast.agent.episodes import Answer, Episodes
from rolecast.service.errors import Fault, kserve
from rolecast.service.replies import refusal

STATUSES = {InvalidInput: 400, InferenceError: 400, NotImplementedError: 501, ModelNotReady: 503}
V1 = 'send {"instances": [question, …]}: each a text or {"question": text}'
V2 = "send one BYTES tensor named 'question'"
OUTPUTS = ("answer", "status")


class TeamModel(Model):  # type: ignore[misc]
    """v1: instances → predictions. v2: BYTES tensor `question` → `answer` and `status`, in the same shape."""

    def __init__(self, name: str, episodes: Episodes) -> None:
        super().__init__(name)
        self._episodes = episodes
        self.ready = True  # the service takes no request before it is

    async def predict(
        self, payload: dict[str, Any] | bytes | InferRequest, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any] | InferResponse:
        if isinstance(payload, InferRequest):
            texts, shape = _tensor(payload)
            return _response(payload, self.name, await self._episodes.answers(texts), shape)
        return {"predictions": [_prediction(answer) for answer in await self._episodes.answers(_instances(payload))]}

    def get_input_types(self) -> list[dict[str, Any]]:
        return [{"name": "question", "datatype": "BYTES", "shape": [-1]}]

    def get_output_types(self) -> list[dict[str, Any]]:
        return [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in OUTPUTS]


class _Plane(DataPlane):  # type: ignore[misc]
    """KServe's, but what it cannot read is the client's fault, and it offers no loading and unloading."""

    def decode(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().decode(*arguments, **named)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"the request cannot be read ({type(error).__name__}: {_line(error)})") from error

    def metadata(self) -> dict[str, Any]:
        return {"name": "rolecast", "version": version("rolecast"), "extensions": []}


def add_kserve_routes(app: FastAPI) -> ModelRepository:
    """KServe's routes over the models of the repository, which is empty. Routes that the app has already come first."""
    # KServe answers v1 with a class that FastAPI has deprecated; the warning would break the lines of the JSON log.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    repository = ModelRepository()

    @app.post("/v2/repository/models/{model_name}/{verb}")
    async def fixed(model_name: str, verb: str) -> None:
        raise HTTPException(405, f"{verb} of {model_name!r}: the team is fixed when the server starts; start another server")

    register_v1_endpoints(app, _Plane(repository), None)
    register_v2_endpoints(app, _Plane(repository), None)
    for kind, status in STATUSES.items():
        app.add_exception_handler(kind, _handler(status))

    @app.exception_handler(ModelNotFound)
    async def not_found(request: Request, error: Exception) -> JSONResponse:
        name = request.path_params.get("model_name", "")
        return refusal(Fault(404, f"no model {name[:200]!r}; this server has {', '.join(map(repr, repository.get_models()))}"), kserve)

    return repository


def _handler(status: int) -> Any:
    async def handle(_: Request, error: Exception) -> JSONResponse:
        return refusal(Fault(status, _line(error)), kserve)

    return handle


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _instances(payload: object) -> list[str]:
    if isinstance(payload, bytes):  # KServe leaves it at that if the content type is not exactly application/json
        try:
            payload = json.loads(payload)
        except ValueError:
            raise InvalidInput(f"the body is no JSON; {V1}") from None
    instances = payload.get("instances") if isinstance(payload, dict) else None
    if not isinstance(instances, list) or not instances:
        raise InvalidInput(V1)
    texts: list[str] = []
    for number, instance in enumerate(instances):
        text = instance.get("question") if isinstance(instance, dict) else instance
        if not isinstance(text, str):
            raise InvalidInput(f"instances[{number}] is no question; {V1}")
        texts.append(text)
    return texts


def _prediction(answer: Answer) -> dict[str, Any]:
    episode = answer.episode
    return {"answer": episode.answer, "status": episode.status, "searches": episode.searches, "trace_url": answer.link}


def _tensor(request: InferRequest) -> tuple[list[str], list[int]]:
    """The questions in row-major order, and the tensor's shape."""
    names = [tensor.name for tensor in request.inputs]
    if names != ["question"] or request.inputs[0].datatype != "BYTES":
        raise InvalidInput(f"inputs {names} of {[tensor.datatype for tensor in request.inputs]}; {V2}")
    wanted = [output.name for output in request.request_outputs or ()]
    if unknown := sorted(set(wanted) - set(OUTPUTS)):
        raise InvalidInput(f"no output {unknown[0]!r}; there are {', '.join(OUTPUTS)}")
    try:
        values = request.inputs[0].as_numpy()
    except ValueError as error:
        raise InvalidInput(f"data and shape of 'question' do not fit: {_line(error)}") from None
    texts = [value.decode() if isinstance(value, bytes) else value for value in values.reshape(-1)]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"'question' holds {'something else than texts' if texts else 'nothing'}; {V2}")
    return texts, list(values.shape)


def _response(request: InferRequest, name: str, answers: list[Answer], shape: list[int]) -> InferResponse:
    data = {"answer": [one.episode.answer or "" for one in answers], "status": [one.episode.status for one in answers]}
    wanted = [output.name for output in request.request_outputs or ()] or OUTPUTS
    return InferResponse(
        request.id or "", name, [InferOutput(output, shape, "BYTES", data[output]) for output in wanted],
        use_binary_outputs=request.use_binary_outputs, requested_outputs=request.request_outputs,
    )  # fmt: skip
