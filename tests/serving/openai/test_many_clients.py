"""Connections that wait for their clients: how many, for how long, and who gives way."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import JSONResponse

from snapexport.serving.openai.http import connections
from snapexport.serving.serve import listening
from tests.serving.openai.conftest import Served, until
from tests.serving.process import SECONDS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("running", ["in process"], indirect=True),
]

ASK = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)
HUGE = 1 << 26
"""Bytes that no socket's buffers hold."""

Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def server(served: Served) -> AsyncIterator[Open]:
    """A server of its own; connects to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    writers = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    async with asyncio.timeout(SECONDS), listening(served.api, listener):
        yield connect
        for writer in writers:
            writer.close()


async def ask(connect: Open, raw: bytes = ASK) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    reader, writer = await connect()
    writer.write(raw)
    return await answer(reader)


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.parametrize("sent", [b"", b"GET /v1/mod", POST])
async def test_new_client_is_served_beside_any_number_of_idle_ones(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 10)
    monkeypatch.setattr(connections, "LEAST_SECONDS", 0)
    async with server(served) as connect:
        idle = []
        for _ in range(40):
            idle.append(await connect())
            idle[-1][1].write(sent)
        for reader, _ in idle[:30]:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
        assert (await ask(connect))[0] == 200


async def test_connection_that_is_answered_gives_way_neither_to_others_nor_to_probes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "LEAST_SECONDS", 0)
    release: list[asyncio.Event] = []

    async def models(*_: Any) -> Any:
        release.append(asyncio.Event())
        await release[-1].wait()
        return JSONResponse({})

    monkeypatch.setattr(type(served.api), "_models", models)
    monkeypatch.setattr(connections, "SPARE_CONNECTIONS", 1)
    probe = ASK.replace(b"/v1/models", b"/health")

    async with server(served) as connect:
        asked = [asyncio.create_task(ask(connect)) for _ in range(2)]
        await until(lambda: len(release) == 2)
        for _ in range(3):  # each is closed after its answer
            assert (await ask(connect, probe))[0] == 200
            status, body = await ask(connect)
        for event in release:
            event.set()
        answers = [*(await asyncio.gather(*asked)), await ask(connect, probe)]
    assert status == 503 and "too many connections" in body["error"]["message"]
    assert [found for found, _ in answers] == [200] * 3


async def test_client_that_sends_nothing_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    async with server(served) as connect:
        silent, _ = await connect()
        assert await silent.read() == b""


async def test_head_that_does_not_arrive_gets_408_though_bytes_do(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a head don't set its timer anew."""
    made: list[connections.BoundedConnection] = []
    got: list[bytes] = []
    receive = connections.BoundedConnection.data_received

    def received(self: connections.BoundedConnection, data: bytes) -> None:
        receive(self, data)
        made.append(self)
        got.append(data)

    monkeypatch.setattr(connections.BoundedConnection, "data_received", received)
    timers = []
    async with server(served) as connect:
        slow, writer = await connect()
        for count in range(1, 6):
            writer.write(b"G")
            await until(lambda count=count: len(b"".join(got)) == count)  # type: ignore[misc]
            timers.append(made[-1]._head_timer)
        assert timers[0] is not None and set(timers) == {timers[0]}
        made[-1]._give_up()  # as the timer calls it
        status, body = await answer(slow)
    assert status == 408 and "head did not arrive" in body["error"]["message"]


async def test_rest_of_a_body_that_was_refused_has_to_hurry(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr("snapexport.serving.openai.bodies.parsing.MOST_BYTES", 10)
    async with server(served) as connect:
        reader, writer = await connect()
        writer.write(POST.replace(b": 100", b": 1000000") + b"a" * 20)
        status, _ = await answer(reader)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"a" * 100)
                await writer.drain()
                await asyncio.sleep(0.01)
    assert status == 413


async def test_client_that_reads_nothing_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.3)
    monkeypatch.setattr(type(served.api), "_card", lambda _: {"x": "x" * HUGE})
    lost = asyncio.Event()
    lose = connections.BoundedConnection.connection_lost

    def gone(self: connections.BoundedConnection, error: Exception | None) -> None:
        lose(self, error)
        lost.set()

    monkeypatch.setattr(connections.BoundedConnection, "connection_lost", gone)
    async with server(served) as connect:
        reader, writer = await connect()
        writer.write(ASK)
        await lost.wait()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(HUGE)


@pytest.mark.parametrize("raw", [b"\x16\x03\x01 no HTTP\r\n\r\n", POST + b"\r\nGET x HTTP/9\r\n"])
async def test_what_is_not_http_is_refused_in_openais_form(served: Served, raw: bytes) -> None:
    wrong = raw.replace(b"Content-Length: 100", b"Content-Length: -1")
    async with server(served) as connect:
        status, body = await ask(connect, wrong)
    assert status == 400 and body["error"]["type"] == "invalid_request_error"


def test_file_limit_is_raised_and_bounds_the_connections(
    running: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(700, 800)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    connections.raise_file_limit()
    assert limits[-1] == (800, 800)
    assert connections.most_connections() == 800 - connections.OTHER_FILES
    limits.append((1 << 20, 1 << 20))
    assert connections.most_connections() == connections.MOST_CONNECTIONS
