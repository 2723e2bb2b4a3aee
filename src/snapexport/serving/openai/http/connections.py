"""Holds the server's connections within bounds: their number, and the times that clients take.

A connection waits for its client while a head or a body arrives. Clients that take too long are
closed. Where connections run out, the one that has waited longest for its client gives way. Some
more may ask only for /health: a server at its limit must not look dead. Knows no other route.
"""

import asyncio
import json
import resource
from collections.abc import Callable
from enum import Enum
from typing import Any

import h11
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from snapexport.serving.openai.http.access import FREE
from snapexport.serving.openai.http.errors import INVALID, ApiError

MOST_CONNECTIONS = 1000
SPARE_CONNECTIONS = 32
"""Further ones, which may only ask for /health."""
BACKLOG = 1024
"""Connections that the kernel holds until the event loop takes them."""
ACCEPTED = 32
"""Connections taken at once. Their requests are read next, before others are taken."""
OTHER_FILES = 128

FULL = ApiError(503, "too many connections: try again later", code="unavailable")

HEAD_SECONDS = 10.0
"""From a connection, or the last answer, to the next request's whole head."""
LEAST_SECONDS = 1.0
"""No connection gives way sooner: under load its request is unread in the kernel meanwhile."""
UNREAD_SECONDS = 60.0
"""Seconds for which a client may leave all of what it was sent unread."""
READ_BYTES = 1 << 15
"""Most bytes taken up at once: in chunks of one byte they keep the event loop for 50 ms."""


def raise_file_limit() -> None:
    """Allow this process as many open files as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """Connections for which this process has file descriptors."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(files - OTHER_FILES, 1))


class State(Enum):
    """The other side that a connection waits for."""

    HEAD = "its client's head"
    BODY = "its client's body"
    ANSWER = "our answer"


class Connections:
    """The connections of one server, by what they wait for, in the order in which they began to."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_state: dict[State, dict[BoundedConnection, float]] = {state: {} for state in State}

    def __len__(self) -> int:
        return sum(map(len, self._by_state.values()))

    def move(self, connection: "BoundedConnection", state: State) -> None:
        """Note what a connection waits for now."""
        self.remove(connection)
        self._by_state[state][connection] = connection.loop.time()

    def remove(self, connection: "BoundedConnection") -> None:
        for connections in self._by_state.values():
            connections.pop(connection, None)

    @property
    def has_spare(self) -> bool:
        """Whether one more may come to ask for /health."""
        return len(self) < self._most + SPARE_CONNECTIONS

    def has_room(self, now: float) -> bool:
        """Whether one more may come. Closes a connection that waits for its client, if need be."""
        if len(self) < self._most:
            return True
        for state in (State.HEAD, State.BODY):
            connection, since = next(iter(self._by_state[state].items()), (None, now))
            if connection and since <= now - LEAST_SECONDS:
                self.remove(connection)
                connection.transport.abort()
                return True
        return False


class BoundedConnection(H11Protocol):
    """A connection of uvicorn's whose client has to hurry."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections = connections
        self._state: State | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._has_data = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        if self._connections.has_room(self.loop.time()):
            self._note_state()
        elif self._connections.has_spare:
            self.app = only_health(self.app)
            self._note_state()
        else:
            self._refuse(FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        _cancel(self._head_timer)
        _cancel(self._unread_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_data = True
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._note_state()

    def on_response_complete(self) -> None:
        self._has_data = False
        super().on_response_complete()
        self._note_state()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._unread_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in OpenAI's form too."""
        self._refuse(ApiError(400, f"{msg.rstrip('.')}: it is not HTTP/1.1", INVALID))

    def _note_state(self) -> None:
        state = self._present()
        if state is self._state or self.transport.is_closing():
            return
        self._state = state
        self._connections.move(self, state)
        _cancel(self._head_timer)
        if state is State.HEAD:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _present(self) -> State:
        # An answer may come before its request's whole body: what is left of that is dropped.
        if self.cycle is None or self.cycle.response_complete:
            return State.HEAD
        return State.BODY if self.conn.their_state is h11.SEND_BODY else State.ANSWER

    def _give_up(self) -> None:
        if self._has_data and self.conn.our_state is h11.IDLE:
            message = f"the request's head did not arrive within {HEAD_SECONDS:g} s"
            self._refuse(ApiError(408, message, INVALID))
        else:
            self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, and close."""
        self._connections.remove(self)
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # within an answer
            return
        body = json.dumps(error.body).encode()
        headers = {"Content-Type": "application/json", "Connection": "close", **error.headers}
        lines = [*headers.items(), ("Content-Length", str(len(body)))]
        for event in (
            h11.Response(status_code=error.status, headers=lines),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def only_health(app: Any) -> Any:
    """The application for /health, and a refusal of all else; the connection closes then."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        asked = app if scope["path"] == FREE else JSONResponse(FULL.body, FULL.status, FULL.headers)
        await asked(scope, receive, closing)

    return answer


def connection_factory() -> Callable[..., BoundedConnection]:
    """Makes the connections of one server."""
    connections = Connections(most_connections())
    return lambda **given: BoundedConnection(connections, **given)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
