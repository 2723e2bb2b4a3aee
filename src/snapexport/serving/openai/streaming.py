"""Merges the outputs of a body's requests, and collects or sends them as server-sent events.

If the client leaves, the merged stream is closed, which closes its requests' streams and so cancels
the requests.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.serving.failures import GenerationError
from snapexport.serving.openai.errors import from_generation
from snapexport.serving.openai.responses import ResponseWriter
from snapexport.serving.streams import Streams, joined

MOST_WAITING = 64
"""Most outputs waiting for a slow client; beyond it the requests' streams are not read."""

DONE = b"data: [DONE]\n\n"

Outputs = AsyncGenerator[tuple[int, OutputDelta]]
"""Outputs with the index of their answer."""

Result = TypeVar("Result")


async def merged(streams: Streams, requests: Sequence[Request]) -> Outputs:
    """Yield the outputs of all requests as they come. The first error ends all requests."""
    if len(requests) == 1:
        async with aclosing(streams.stream(requests[0])) as outputs:
            async for output in outputs:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, OutputDelta] | Exception] = asyncio.Queue(MOST_WAITING)
    tasks = [
        asyncio.create_task(_forward(streams, index, request, queue))
        for index, request in enumerate(requests)
    ]
    running = len(requests)
    try:
        while running:
            entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            yield entry
            running -= entry[1].finish_reason is not None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    streams: Streams,
    index: int,
    request: Request,
    queue: "asyncio.Queue[tuple[int, OutputDelta] | Exception]",
) -> None:
    try:
        async with aclosing(streams.stream(request)) as outputs:
            async for output in outputs:
                await queue.put((index, output))
    except Exception as error:
        await queue.put(error)


async def collected(outputs: Outputs, count: int) -> list[OutputDelta]:
    """The whole answers, in the order of their requests."""
    answers: list[list[OutputDelta]] = [[] for _ in range(count)]
    async with aclosing(outputs):
        async for index, output in outputs:
            answers[index].append(output)
    return [joined(answer) for answer in answers]


async def require_client(request: HttpRequest) -> None:
    """Raise ClientDisconnect if the client has left: under load many leave while they wait.

    For use after the body was read.
    """
    if await request.is_disconnected():
        raise ClientDisconnect


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled if the client leaves. Raises ClientDisconnect.

    For use after the body was read: the next message of the connection is then its end.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Sends events. Closes `outputs` at the end, or when the client has left."""

    def __init__(self, events: AsyncIterator[bytes], outputs: Outputs) -> None:
        # Forbids proxies to buffer the answer until it is complete.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._outputs = outputs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._outputs):
            await super().__call__(scope, receive, send)


async def events(
    writer: ResponseWriter, first: tuple[int, OutputDelta], rest: Outputs
) -> AsyncIterator[bytes]:
    """Yield each of the writer's chunks as an event, then [DONE].

    An error becomes the last event, since the status is already sent.
    """
    try:
        async for index, output in _chained(first, rest):
            for chunk in writer.chunks(index, output):
                yield _event(chunk)
    except GenerationError as error:
        yield _event(from_generation(error).body)
        return
    for chunk in writer.last_chunks():
        yield _event(chunk)
    yield DONE


async def _chained(first: tuple[int, OutputDelta], rest: Outputs) -> Outputs:
    yield first
    async for entry in rest:
        yield entry


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
