"""Binds the API's socket, listens, and drains: running answers may finish within a bound."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from snapexport.errors import UserError
from snapexport.serving.openai.api_server import Api
from snapexport.serving.openai.connections import (
    ACCEPTED,
    BACKLOG,
    connections,
    raise_file_limit,
)
from snapexport.serving.openai.signals import Signals

CLOSING_SECONDS = 3
"""Seconds for the last bytes of ended answers, and then for their connections."""


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
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
            raise _refused(host, port, error) from None
        yield listener


def _refused(host: str, port: int, error: BaseException | None) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    hint = "choose another --port; 0: a free one"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        hint = "use an address of this machine for --host"
    return UserError(f"--port {port} on {host}: {reason}", hint)


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
                raise _refused(host, port, serving.exception())
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
