"""The routes of the API: from a request to its answer. Knows a generator, and no Triton."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from snapexport.runtime import requests as runtime
from snapexport.serving.openai.bodies import Asked, ChatRequest, CompletionRequest, parse
from snapexport.serving.openai.connection import read_body, unless_gone
from snapexport.serving.openai.errors import leaving, unknown_model
from snapexport.serving.openai.events import EventStream, Pieces, events
from snapexport.serving.openai.gate import Gate
from snapexport.serving.openai.handlers import HANDLERS, Gated
from snapexport.serving.openai.pieces import Answer
from snapexport.serving.openai.pulse import Pulse
from snapexport.serving.openai.reader import Reader
from snapexport.serving.openai.shapes import ChatShape, CompletionShape, Shape, usage
from snapexport.serving.openai.together import together


@dataclass(frozen=True)
class Api:
    """One model, behind OpenAI's routes."""

    name: str
    reader: Reader
    pulse: Pulse
    metrics: Callable[[], Awaitable[bytes]]
    """What /metrics tells, in Prometheus's text form."""

    gate: Gate = field(default_factory=Gate)
    created: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> Starlette:
        """The application, for any ASGI server."""
        gated = [Middleware(Gated, gate=self.gate)]
        return Starlette(
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

    async def _chat(self, request: Request) -> Response:
        body = parse(ChatRequest, await read_body(request))
        self._require(body.model)
        requests = await asyncio.to_thread(self.reader.chat, body)
        shape = ChatShape(self.name, body.alternatives is not None)
        return await self._answer(request, body, requests[:1], requests, shape)

    async def _complete(self, request: Request) -> Response:
        body = parse(CompletionRequest, await read_body(request))
        self._require(body.model)
        requests = await asyncio.to_thread(self.reader.completion, body)
        echoed = body.prompt if body.echo else []
        echoes = [self.reader.text_of(prompt) for prompt in echoed for _ in range(body.n)]
        shape = CompletionShape(self.name, body.alternatives is not None, echoes)
        return await self._answer(request, body, requests[:: body.n], requests, shape)

    async def _answer(
        self,
        request: Request,
        body: Asked,
        prompts: Sequence[runtime.Request],
        requests: Sequence[runtime.Request],
        shape: Shape,
    ) -> Response:
        prompt_tokens = sum(len(one.prompt_token_ids) for one in prompts)
        pieces = together(self.pulse, requests)
        if not body.stream:
            answers = await unless_gone(request, _collected(pieces, len(requests)))
            total = sum(answer.tokens for answer in answers)
            return JSONResponse(shape.whole(answers, usage(prompt_tokens, total)))
        # An error before the first piece still finds the status unsaid.
        first = await unless_gone(request, pieces.__anext__())
        return EventStream(events(shape, first, pieces, prompt_tokens, body.tells_usage), pieces)

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
            raise leaving()
        await self.pulse.check()
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        return Response(await self.metrics(), media_type="text/plain; version=0.0.4")

    def _require(self, model: str) -> None:
        if model != self.name:
            raise unknown_model(model, self.name)


async def _collected(pieces: Pieces, count: int) -> list[Answer]:
    answers = [Answer() for _ in range(count)]
    async with aclosing(pieces):
        async for index, piece in pieces:
            answers[index].add(piece)
    return answers
