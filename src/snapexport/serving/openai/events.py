"""An answer as server-sent events: objects, then the usage if it was asked for, then [DONE]."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.pieces import Piece
from snapexport.serving.openai.shapes import Shape, usage

DONE = b"data: [DONE]\n\n"

Pieces = AsyncGenerator[tuple[int, Piece]]
"""Pieces with the index of their answer."""


class EventStream(StreamingResponse):
    """Sends events. Once the client has left, nobody is asked for the `rest` of the pieces."""

    def __init__(self, events: AsyncIterator[bytes], rest: Pieces) -> None:
        # A proxy that holds answers back until they are whole would undo the streaming.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await super().__call__(scope, receive, send)


async def events(
    shape: Shape, first: tuple[int, Piece], rest: Pieces, prompt_tokens: int, tells_usage: bool
) -> AsyncIterator[bytes]:
    """One event for each chunk. The status is told already: an error becomes the last event."""
    completion_tokens = 0
    idle = {"usage": None} if tells_usage else {}
    try:
        async for index, piece in _joined(first, rest):
            completion_tokens += piece.tokens
            for chunk in shape.chunks(index, piece):
                yield _event(chunk | idle)
    except ApiError as error:
        yield _event(error.body)
        return
    if tells_usage:
        yield _event(shape.chunk([]) | {"usage": usage(prompt_tokens, completion_tokens)})
    yield DONE


async def _joined(first: tuple[int, Piece], rest: Pieces) -> Pieces:
    yield first
    async for entry in rest:
        yield entry


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
