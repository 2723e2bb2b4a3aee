"""The routes of the API: from an HTTP request to its answer.

A route that generates is a row of `ENDPOINTS`: a body's fields, the requests that it becomes, and
the objects of its answer.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import snapexport
from snapexport.runtime.confined import PROCESSES
from snapexport.serving.model import Model
from snapexport.serving.openai import preprocess
from snapexport.serving.openai.access import Access
from snapexport.serving.openai.body_reader import BodyReader
from snapexport.serving.openai.errors import INVALID, ApiError, shutting_down
from snapexport.serving.openai.health import Health
from snapexport.serving.openai.messages_body import MessagesRequest, Prompt
from snapexport.serving.openai.messages_writer import MessagesWriter
from snapexport.serving.openai.middleware import HANDLERS, Gate, gated
from snapexport.serving.openai.openapi import document
from snapexport.serving.openai.preprocess import Prepared
from snapexport.serving.openai.protocol import ChatRequest, CompletionRequest
from snapexport.serving.openai.responses import ChatWriter, CompletionWriter
from snapexport.serving.openai.responses_body import ResponsesRequest
from snapexport.serving.openai.responses_writer import ResponsesWriter
from snapexport.serving.openai.streaming import (
    EventStream,
    begun,
    collected,
    events,
    merged,
    require_client,
    unless_gone,
)
from snapexport.serving.openai.tokenization import (
    DetokenizeRequest,
    TokenizeRequest,
    count_input,
    count_tokens,
    detokenize,
    tokenize,
)
from snapexport.serving.openai.turns import Turns
from snapexport.serving.openai.writer import Writer

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
    Endpoint("/v1/chat/completions", ChatRequest, preprocess.chat, ChatWriter, PROCESSES),
    Endpoint("/v1/completions", CompletionRequest, preprocess.completion, CompletionWriter),
    Endpoint(
        "/v1/responses", ResponsesRequest, preprocess.in_other_words, ResponsesWriter, PROCESSES
    ),
    Endpoint("/v1/messages", MessagesRequest, preprocess.in_other_words, MessagesWriter, PROCESSES),
)


@dataclass(frozen=True)
class Utility:
    """A route that generates nothing. compute: runs in a thread of the route's own."""

    path: str
    body: type[BaseModel]
    compute: Callable[[Model, Any], dict[str, Any]]


UTILITIES = (
    Utility("/v1/messages/count_tokens", Prompt, count_tokens),
    Utility("/v1/responses/input_tokens", ResponsesRequest, count_input),
    Utility("/tokenize", TokenizeRequest, tokenize),
    Utility("/detokenize", DetokenizeRequest, detokenize),
)

GETS = {
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
    compilers: Turns = field(default_factory=lambda: Turns(PROCESSES, MOST_READ))
    """Of grammars: one that takes long delays no request without."""
    created: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> ASGIApp:
        """The application, for any ASGI server."""
        routes = [
            *map(self._route, self.endpoints),
            *map(self._utility_route, self.utilities),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
        ]
        return self.access.guard(Starlette(routes=routes, exception_handlers=HANDLERS))

    def _route(self, endpoint: Endpoint) -> Route:
        answer = partial(self._answer, endpoint, Turns(endpoint.readers, MOST_READ))
        return self._post(endpoint.path, answer)

    def _utility_route(self, utility: Utility) -> Route:
        answer = partial(self._compute, utility, Turns(1, MOST_READ))
        return self._post(utility.path, answer)

    def _post(self, path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        counted = [Middleware(gated, gate=self.gate)]
        return Route(path, answer, methods=["POST"], middleware=counted)

    async def _answer(self, endpoint: Endpoint, readers: Turns, request: Request) -> Response:
        body = await self.bodies.read(request, endpoint.body)
        await require_client(request)
        self._require(body.model)
        prepared = await readers.run(endpoint.prepare, self.model, body)
        if prepared.has_forms:
            prepared = await self.compilers.run(preprocess.compiled, self.model, prepared)
        await require_client(request)
        writer = endpoint.writer(self.model, body, prepared)
        opened = [self.model.streams.open(each) for each in prepared.requests]
        outputs = merged(self.model.streams, opened)
        if not body.stream:
            answers = await unless_gone(request, collected(outputs, len(opened)))
            return JSONResponse(writer.whole(answers))
        first = await unless_gone(request, begun(outputs))
        return EventStream(events(writer, first, outputs, opened), outputs)

    async def _compute(self, utility: Utility, turns: Turns, request: Request) -> Response:
        body = await self.bodies.read(request, utility.body)
        await require_client(request)
        if (name := getattr(body, "model", None)) is not None:
            self._require(name)
        return JSONResponse(await turns.run(utility.compute, self.model, body))

    async def _openapi(self, _: Request) -> Response:
        posts: dict[str, type[BaseModel]] = {each.path: each.body for each in self.endpoints}
        posts |= {each.path: each.body for each in self.utilities}
        return JSONResponse(document(snapexport.__version__, posts, GETS))

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
        await self.health.check()
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        content = self.model.metrics({"model": self.model.name, "version": "1"})
        return Response(content, media_type="text/plain; version=0.0.4")

    def _require(self, name: str) -> None:
        if name != self.model.name:
            message = f"the model '{name}' is not served here, '{self.model.name}' is"
            raise ApiError(404, message, INVALID, "model", "model_not_found")
