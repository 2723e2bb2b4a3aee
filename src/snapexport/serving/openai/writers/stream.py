"""Merges the outputs of a body's requests, and collects or sends them as server-sent events.

If the client leaves, the merged stream is closed, which closes its requests' streams and so cancels
the requests. Where nothing comes for some seconds, a comment is sent, which clients ignore: proxies
and clients close silent connections.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.openai.http.errors import from_generation
from snapexport.serving.openai.writers.writer import Object, Writer
from snapexport.serving.streams import Stream, Streams, join_deltas
from snapexport.serving.worker import GenerationError

MOST_WAITING = 64
"""Most outputs waiting for a slow client; beyond it the requests' streams are not read."""

STATUS_SECONDS = 0.5
"""Seconds in which an error still sets a stream's status: a full queue is known at once."""

COMMENT_SECONDS = 1.0

Entry = tuple[int, OutputDelta]
"""An output with the index of its answer."""
Outputs = AsyncGenerator[Entry]
First = asyncio.Future[Entry]

Result = TypeVar("Result")


async def merge(streams: Streams, opened: Sequence[Stream]) -> Outputs:
    """Yield the outputs of all requests as they come. The first error ends all requests."""
    if len(opened) == 1:
        async with aclosing(streams.outputs(opened[0])) as outputs:
            async for output in outputs:
                yield 0, output
        return
    queue: asyncio.Queue[Entry | Exception] = asyncio.Queue(MOST_WAITING)
    tasks = [
        asyncio.create_task(_forward(streams, index, stream, queue))
        for index, stream in enumerate(opened)
    ]
    running = len(opened)
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
    stream: Stream,
    queue: "asyncio.Queue[Entry | Exception]",
) -> None:
    try:
        async with aclosing(streams.outputs(stream)) as outputs:
            async for output in outputs:
                await queue.put((index, output))
    except Exception as error:
        await queue.put(error)


async def collect(outputs: Outputs, count: int) -> list[OutputDelta]:
    """The whole answers, in the order of their requests."""
    answers: list[list[OutputDelta]] = [[] for _ in range(count)]
    async with aclosing(outputs):
        async for index, output in outputs:
            answers[index].append(output)
    return [join_deltas(answer) for answer in answers]


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
    leaving = asyncio.ensure_future(_client_leaves(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _client_leaves(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def begin(outputs: Outputs) -> First:
    """The first output, as a task that may have to wait. Raises what comes in STATUS_SECONDS."""
    first = asyncio.ensure_future(outputs.__anext__())
    try:
        await asyncio.wait({first}, timeout=STATUS_SECONDS)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if first.done():
        first.result()
    return first


class EventStream(StreamingResponse):
    """Sends events. Closes them and `outputs` at the end, or when the client has left."""

    def __init__(self, events: AsyncGenerator[bytes], outputs: Outputs) -> None:
        # Forbids proxies to buffer the answer until it is complete.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events, self._outputs = events, outputs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._outputs), aclosing(self._events):
            await super().__call__(scope, receive, send)


async def events(
    writer: Writer, first: First, rest: Outputs, opened: Sequence[Stream]
) -> AsyncGenerator[bytes]:
    """Yield each of the writer's chunks as an event, then what ends the stream.

    An error becomes the last event, since the status is already sent.
    """
    try:
        async with aclosing(_with_pauses(first, rest)) as entries:
            async for entry in entries:
                if entry is None:
                    yield _comment(opened)
                    continue
                for chunk in writer.chunks(*entry):
                    yield _event(chunk, writer)
    except GenerationError as error:
        for chunk in writer.fail(from_generation(error)):
            yield _event(chunk, writer)
        return
    for chunk in writer.last_chunks():
        yield _event(chunk, writer)
    if writer.last:
        yield writer.last


async def _with_pauses(first: First, rest: Outputs) -> AsyncGenerator[Entry | None]:
    """All outputs; None wherever nothing came for COMMENT_SECONDS."""
    coming = first
    try:
        while True:
            await asyncio.wait({coming}, timeout=COMMENT_SECONDS)
            if not coming.done():
                yield None
                continue
            try:
                entry = coming.result()
            except StopAsyncIteration:
                return
            yield entry
            coming = asyncio.ensure_future(rest.__anext__())
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _comment(opened: Sequence[Stream]) -> bytes:
    """How far the prompts are, in a line that is not an event."""
    done = sum(stream.prefilled for stream in opened)
    total = sum(len(stream.request.prompt_token_ids) for stream in opened)
    return f": prefill {done}/{total}\n\n".encode()


def _event(value: Object, writer: Writer) -> bytes:
    name = f"event: {value['type']}\n".encode() if writer.names_events else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
