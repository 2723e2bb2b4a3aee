"""The routes of the API: from an HTTP request to its answer, and their description.

A route that generates is a row of `ENDPOINTS`: a body's fields, the requests that it becomes, and
the objects of its answer. /openapi.json is made from the bodies' own models: fields that are taken
without effect, or with only one value, are in it, since clients that check their bodies by it may
send them. Answers are objects of OpenAI's, and are not described again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import pydantic
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import snapexport
from snapexport.runtime.confined import PROCESSES
from snapexport.serving.health import Health, UnhealthyError
from snapexport.serving.model import Model
from snapexport.serving.openai import requests
from snapexport.serving.openai.bodies.chat import ChatRequest, DetokenizeRequest, TokenizeRequest
from snapexport.serving.openai.bodies.completions import CompletionRequest
from snapexport.serving.openai.bodies.messages import MessagesRequest, Prompt
from snapexport.serving.openai.bodies.parsing import IGNORED, NEUTRAL, BodyReader
from snapexport.serving.openai.bodies.responses import ResponsesRequest
from snapexport.serving.openai.http.access import PAGE, Access, Gate, count_requests
from snapexport.serving.openai.http.errors import (
    HANDLERS,
    INVALID,
    ApiError,
    from_generation,
    shutting_down,
)
from snapexport.serving.openai.requests import Prepared
from snapexport.serving.openai.writers.choices import ChatWriter, CompletionWriter
from snapexport.serving.openai.writers.messages import MessagesWriter
from snapexport.serving.openai.writers.responses import ResponsesWriter
from snapexport.serving.openai.writers.stream import (
    EventStream,
    begin,
    collect,
    events,
    merge,
    require_client,
    unless_gone,
)
from snapexport.serving.openai.writers.writer import Writer
from snapexport.serving.page.route import page_route
from snapexport.serving.worker import NO_MEMORY, GenerationError

Given = ParamSpec("Given")
Result = TypeVar("Result")


class BoundedThreads:
    """Threads, and a bounded queue for them."""

    def __init__(self, threads: int, most: int) -> None:
        """most: runs and waits at the same time; more is refused."""
        self._threads = ThreadPoolExecutor(threads, "snapexport-read")
        self._most = most
        self._inside = 0

    async def run(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """The result of the work. Raises ApiError if too much waits already."""
        if self._inside >= self._most:
            message = f"{self._most} requests are being read already: try again later"
            raise ApiError(503, message, code="unavailable")
        self._inside += 1
        try:
            running = self._threads.submit(work, *args, **kwargs)
            return await asyncio.wrap_future(running)
        finally:
            self._inside -= 1


MOST_READ = 128
"""Requests of a route whose prompts are rendered and tokenized, or wait for it."""


@dataclass(frozen=True)
class Endpoint:
    """A route that generates. prepare: runs in one of `readers` threads of the route's own."""

    path: str
    body: type[Any]
    prepare: Callable[[Model, Any], Prepared]
    writer: Callable[[Model, Any, Prepared], Writer]
    readers: int = 2  # a tokenizer uses all cores by itself


ENDPOINTS = (
    Endpoint("/v1/chat/completions", ChatRequest, requests.chat, ChatWriter, PROCESSES),
    Endpoint("/v1/completions", CompletionRequest, requests.completion, CompletionWriter),
    Endpoint(
        "/v1/responses", ResponsesRequest, requests.chat_by_another_name, ResponsesWriter, PROCESSES
    ),
    Endpoint(
        "/v1/messages", MessagesRequest, requests.chat_by_another_name, MessagesWriter, PROCESSES
    ),
)


@dataclass(frozen=True)
class Utility:
    """A route that generates nothing. compute: runs in a thread of the route's own."""

    path: str
    body: type[BaseModel]
    compute: Callable[[Model, Any], dict[str, Any]]


UTILITIES = (
    Utility("/v1/messages/count_tokens", Prompt, requests.count_tokens),
    Utility("/v1/responses/input_tokens", ResponsesRequest, requests.count_input),
    Utility("/tokenize", TokenizeRequest, requests.tokenize),
    Utility("/detokenize", DetokenizeRequest, requests.detokenize),
)

GETS = {
    PAGE: "text/html",
    "/v1/models": "application/json",
    "/v1/models/{name}": "application/json",
    "/health": "application/json",
    "/metrics": "text/plain",
}


@dataclass(frozen=True)
class Api:
    """One model with OpenAI's routes."""

    model: Model
    health: Health
    endpoints: Sequence[Endpoint] = ENDPOINTS
    utilities: Sequence[Utility] = UTILITIES
    access: Access = field(default_factory=Access)
    gate: Gate = field(default_factory=Gate)
    bodies: BodyReader = field(default_factory=BodyReader)
    page: bool = True
    compilers: BoundedThreads = field(default_factory=lambda: BoundedThreads(PROCESSES, MOST_READ))
    """Of grammars: one that takes long delays no request without."""
    created: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> ASGIApp:
        """The application, for any ASGI server."""
        generating = [
            self._post(each.path, self._answer, each, BoundedThreads(each.readers, MOST_READ))
            for each in self.endpoints
        ]
        computing = [
            self._post(each.path, self._compute, each, BoundedThreads(1, MOST_READ))
            for each in self.utilities
        ]
        routes = [
            *generating,
            *computing,
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
        ]
        if self.page:
            routes.append(page_route())
        return self.access.guard(Starlette(routes=routes, exception_handlers=HANDLERS))

    def _post(self, path: str, answer: Callable[..., Awaitable[Response]], *given: object) -> Route:
        """given: arguments of `answer` before the request."""
        counted = [Middleware(count_requests, gate=self.gate)]
        return Route(path, partial(answer, *given), methods=["POST"], middleware=counted)

    async def _answer(
        self, endpoint: Endpoint, readers: BoundedThreads, request: Request
    ) -> Response:
        self._require_memory()
        async with self.bodies.body(request, endpoint.body) as body:
            await require_client(request)
            self._require(body.model)
            prepared = await readers.run(endpoint.prepare, self.model, body)
            if prepared.has_forms:
                prepared = await self.compilers.run(requests.compile_forms, self.model, prepared)
        await require_client(request)
        self._require_memory()  # others came while its prompt was read
        writer = endpoint.writer(self.model, body, prepared)
        opened = [self.model.streams.open(each) for each in prepared.requests]
        outputs = merge(self.model.streams, opened)
        if not body.stream:
            answers = await unless_gone(request, collect(outputs, len(opened)))
            return JSONResponse(writer.whole(answers))
        first = await unless_gone(request, begin(outputs))
        return EventStream(events(writer, first, outputs, opened), outputs)

    async def _compute(
        self, utility: Utility, threads: BoundedThreads, request: Request
    ) -> Response:
        async with self.bodies.body(request, utility.body) as body:
            await require_client(request)
            if (name := getattr(body, "model", None)) is not None:
                self._require(name)
            return JSONResponse(await threads.run(utility.compute, self.model, body))

    async def _openapi(self, _: Request) -> Response:
        posts: dict[str, type[BaseModel]] = {each.path: each.body for each in self.endpoints}
        posts |= {each.path: each.body for each in self.utilities}
        gets = {path: kind for path, kind in GETS.items() if self.page or path != PAGE}
        return JSONResponse(document(snapexport.__version__, posts, gets))

    async def _models(self, _: Request) -> Response:
        if self.gate.closed:  # clients take it for a sign of life
            raise shutting_down()
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        self._require(request.path_params["name"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.created,
            "owned_by": "snapexport",
            "max_model_len": self.model.limits.longest_prompt,
        }

    async def _health(self, _: Request) -> Response:
        if self.gate.closed:
            raise shutting_down()
        try:
            await self.health.check()
        except UnhealthyError as error:
            raise ApiError(503, str(error), code=error.code) from None
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        content = self.model.metrics({"model": self.model.name, "version": "1"})
        return Response(content, media_type="text/plain; version=0.0.4")

    def _require_memory(self) -> None:
        if not self.model.admits():
            raise from_generation(GenerationError(NO_MEMORY))

    def _require(self, name: str) -> None:
        if name != self.model.name:
            message = f"the model '{name}' is not served here, '{self.model.name}' is"
            raise ApiError(404, message, INVALID, "model", "model_not_found")


VERSION = "3.1.0"
REFERENCE = "#/components/schemas/{model}"

ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def document(
    version: str,
    posts: Mapping[str, type[pydantic.BaseModel]],
    gets: Mapping[str, str],
) -> dict[str, Any]:
    """posts: paths with their bodies. gets: paths with the content types of their answers."""
    references, schemas = _schemas(set(posts.values()))
    paths: dict[str, Any] = {}
    for path, body in posts.items():
        content = _json(references[body])
        body_of = {"required": True, "content": content}
        paths[path] = {"post": {"requestBody": body_of, "responses": _responses()}}
    for path, kind in gets.items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        paths[path] = {
            "get": {"parameters": list(map(_in_path, names)), "responses": _responses(kind)}
        }
    return {
        "openapi": VERSION,
        "info": {"title": "snapexport serve", "version": version},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR, **schemas}},
    }


def _schemas(bodies: Collection[type[pydantic.BaseModel]]) -> tuple[dict[Any, str], dict[str, Any]]:
    """References to the schemas of bodies, and all schemas by name."""
    given: list[tuple[type[pydantic.BaseModel], JsonSchemaMode]] = [
        (body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)
    ]
    found, others = models_json_schema(given, ref_template=REFERENCE)
    references = {body: schema["$ref"] for (body, _), schema in found.items()}
    schemas: dict[str, Any] = others["$defs"]
    for reference in references.values():
        schema = schemas[reference.rpartition("/")[2]]
        own = schema["properties"]
        neutral = {name: {"enum": list(values)} for name, values in NEUTRAL.items()}
        schema["properties"] = {**{name: {} for name in sorted(IGNORED)}, **neutral, **own}
    for schema in schemas.values():  # null counts as absent
        for name in schema.get("properties", {}).keys() - set(schema.get("required", ())):
            schema["properties"][name] = _or_null(schema["properties"][name])
    return references, schemas


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    default = {"default": schema["default"]} if "default" in schema else {}
    bare = {name: value for name, value in schema.items() if name != "default"}
    return {"anyOf": [bare, {"type": "null"}], **default}


def _json(reference: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": reference}}}


def _responses(kind: str = "application/json") -> dict[str, Any]:
    content = {kind: {"schema": {"type": "object"} if kind == "application/json" else {}}}
    error = {"description": "an error", "content": _json(REFERENCE.format(model="Error"))}
    return {"200": {"description": "the answer", "content": content}, "default": error}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
