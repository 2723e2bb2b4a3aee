"""The routes of the API: from an HTTP request to its answer.

Knows the `Generator` protocol, and neither the LLM nor Triton.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from snapexport.runtime.chat.template_process import PROCESSES
from snapexport.runtime.requests import request as runtime
from snapexport.serving.openai.access import Access
from snapexport.serving.openai.body_reader import BodyReader
from snapexport.serving.openai.errors import INVALID, ApiError, shutting_down
from snapexport.serving.openai.health import Health
from snapexport.serving.openai.middleware import HANDLERS, Gate, Gated
from snapexport.serving.openai.preprocess import Preprocessor
from snapexport.serving.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    RequestBody,
)
from snapexport.serving.openai.responses import (
    ChatWriter,
    CompletionWriter,
    ResponseWriter,
    Usage,
)
from snapexport.serving.openai.streaming import (
    EventStream,
    collected,
    events,
    merged,
    require_client,
    unless_gone,
)
from snapexport.serving.openai.turns import Turns

READERS = 2
"""Threads that tokenize completions. The tokenizer uses all cores by itself."""
MOST_READ = 128
"""Requests of a route whose prompts are rendered and tokenized, or wait for it."""


@dataclass(frozen=True)
class Api:
    """One model behind OpenAI's routes."""

    name: str
    preprocessor: Preprocessor
    health: Health
    access: Access = field(default_factory=Access)
    gate: Gate = field(default_factory=Gate)
    bodies: BodyReader = field(default_factory=BodyReader)
    # Apart: a chat template may take its time.
    chats: Turns = field(default_factory=lambda: Turns(PROCESSES, MOST_READ))
    completions: Turns = field(default_factory=lambda: Turns(READERS, MOST_READ))
    created: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> ASGIApp:
        """The application, for any ASGI server."""
        gated = [Middleware(Gated, gate=self.gate)]
        routes = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"], middleware=gated),
                Route("/v1/completions", self._complete, methods=["POST"], middleware=gated),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers=HANDLERS,
        )
        return self.access.guard(routes)

    async def _chat(self, request: Request) -> Response:
        body = await self.bodies.read(request, ChatRequest)
        await require_client(request)
        self._require(body.model)
        requests = await self.chats.run(self.preprocessor.chat, body)
        text_of = None if body.top_logprobs_count is None else self.preprocessor.text_of
        writer = ChatWriter(self.name, text_of)
        return await self._answer(request, body, requests[:1], requests, writer)

    async def _complete(self, request: Request) -> Response:
        body = await self.bodies.read(request, CompletionRequest)
        await require_client(request)
        self._require(body.model)
        requests = await self.completions.run(self.preprocessor.completion, body)
        echoes = await self.completions.run(self.preprocessor.echoes, body)
        text_of = None if body.top_logprobs_count is None else self.preprocessor.text_of
        writer = CompletionWriter(self.name, text_of, echoes)
        return await self._answer(request, body, requests[:: body.n], requests, writer)

    async def _answer(
        self,
        request: Request,
        body: RequestBody,
        prompts: Sequence[runtime.Request],
        requests: Sequence[runtime.Request],
        writer: ResponseWriter,
    ) -> Response:
        await require_client(request)
        usage = Usage(sum(len(one.prompt_token_ids) for one in prompts), body.n)
        outputs = merged(self.health.generator, requests)
        if not body.stream:
            answers = await unless_gone(request, collected(outputs, len(requests)))
            return JSONResponse(writer.whole(answers, usage))
        # An error before the first output can still set the status.
        first = await unless_gone(request, outputs.__anext__())
        lines = events(writer, first, outputs, usage, body.includes_usage)
        return EventStream(lines, outputs)

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        self._require(request.path_params["name"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "snapexport",
        }

    async def _health(self, _: Request) -> Response:
        if self.gate.closed:
            raise shutting_down()
        await self.health.check()
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        content = await self.health.generator.metrics()
        return Response(content, media_type="text/plain; version=0.0.4")

    def _require(self, model: str) -> None:
        if model != self.name:
            message = f"the model '{model}' is not served here, '{self.name}' is"
            raise ApiError(404, message, INVALID, "model", "model_not_found")
