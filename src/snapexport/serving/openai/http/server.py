"""Binds the API's socket, listens, and drains: running answers may finish within a bound.

The first SIGINT or SIGTERM starts the drain, the second cuts it short. The process then ends within
some seconds, whatever still runs in it.
"""

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from snapexport.errors import UserError
from snapexport.serving.openai.api import Api
from snapexport.serving.openai.http.connections import (
    ACCEPTED,
    BACKLOG,
    connections,
    raise_file_limit,
)

CLOSING_SECONDS = 3
"""Seconds for the last bytes of ended answers, and then for their connections."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HURRY_SECONDS = 3.0
"""Seconds from the second signal to the end of the process, for its clean-up."""


@contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet. Raises UserError.

    Binding before the build is loaded refuses a port in use at once.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UserError(
            f"--host {host}: {error.strerror}", "use an address of this machine"
        ) from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _port_error(host, port, error) from None
        yield listener


def _port_error(host: str, port: int, error: BaseException | None) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    hint = "choose another --port; 0: a free one"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        hint = "use an address of this machine for --host"
    return UserError(f"--port {port} on {host}: {reason}", hint)


class Signals:
    """Events of the event loop in which `listen` is called."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.hurried = asyncio.Event()

    def listen(self) -> None:
        """Let signals set `received` and then `hurried`, until the loop closes."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if self.received.is_set() and not self.hurried.is_set():
            self.hurried.set()
            self._end_soon(128 + number)
        self.received.set()

    def _end_soon(self, status: int) -> None:
        """End the process after a while, even if a thread of it never ends."""
        end = threading.Timer(HURRY_SECONDS, os._exit, [status])
        end.daemon = True
        end.start()


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `Signals` handles signals, since uvicorn would not drain."""
        yield


@asynccontextmanager
async def listening(api: Api, listener: socket.socket) -> AsyncIterator[None]:
    """Answer on a bound socket while the block lasts."""
    raise_file_limit()
    config = uvicorn.Config(
        api.app(),
        http=connections(),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_level="error",  # a warning for each bad request would fill the log
        access_log=False,
        backlog=ACCEPTED,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    server = _Uvicorn(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                host, port = listener.getsockname()[:2]
                raise _port_error(host, port, serving.exception())
            await asyncio.sleep(0.01)
        listener.listen(BACKLOG)  # asyncio has one number for both
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({serving})


async def drain(
    api: Api,
    close: Callable[[], Coroutine[Any, Any, None]],
    signals: Signals,
    seconds: float,
) -> None:
    """Refuse new requests, wait `seconds` for running ones, then end them by `close`."""
    api.gate.closed = True
    await first_of(api.gate.empties(seconds), signals.hurried.wait())
    await close()
    await api.gate.empties(CLOSING_SECONDS)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first to end, and cancel the others. Raises the first one's exception."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
