"""Runs the API on a socket, and ends it in order: what runs may finish, within a bound."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from snapexport.serving.openai.app import Api
from snapexport.serving.openai.ending import Ending
from snapexport.serving.openai.listener import refused

MOST_CONNECTIONS = 1000
"""Further ones get 503 at once: each may hold a body in memory, and a file descriptor."""

CLOSING_SECONDS = 3
"""For the last bytes of answers that were cut off, and then for their connections."""


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `Ending`: uvicorn's own way out has no place for a drain."""
        yield


@asynccontextmanager
async def listening(api: Api, listener: socket.socket) -> AsyncIterator[None]:
    """Answer on a bound socket while the block lasts."""
    config = uvicorn.Config(
        api.app(),
        lifespan="off",
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    server = _Uvicorn(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                host, port = listener.getsockname()[:2]
                raise refused(host, port, "--port", serving.exception())
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({serving})


async def drain(
    api: Api,
    cut: Callable[[], Coroutine[Any, Any, None]],
    ending: Ending,
    seconds: float,
) -> None:
    """Refuse what comes, wait for what runs, and cut off what is left after so many seconds."""
    api.gate.close()
    await first_of(api.gate.empties(seconds), ending.hurried.wait())
    await cut()
    await api.gate.empties(CLOSING_SECONDS)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait for one, and cancel the others. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
