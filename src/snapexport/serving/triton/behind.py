"""Puts a Triton server behind the API: writes a repository, starts the server, connects to it.

A server that dies is started again, at the same ports.
"""

import asyncio
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import fields
from pathlib import Path

from snapexport.errors import UserError, first_line
from snapexport.serving.child_process import Backing
from snapexport.serving.openai.http_server import bound
from snapexport.serving.options import ModelOptions, ServeOptions
from snapexport.serving.triton.client import TritonGenerator
from snapexport.serving.triton.installation import find
from snapexport.serving.triton.options import RepositoryOptions
from snapexport.serving.triton.repository import write_repository
from snapexport.serving.triton.server import HOST, Ports, Server

LOADING_SECONDS = 900
"""Seconds for the server to load the build."""
MOST_RESTARTS, WITHIN_SECONDS = 3, 600.0
"""So many starts in that time; a server that dies more often has a reason that stays."""
READY_SECONDS = 0.1
"""Seconds between two looks at a server that starts."""


class Restarts:
    """Starts a server again after its death, so often and no more."""

    def __init__(self, server: Server, log: Callable[[str], None]) -> None:
        self._server = server
        self._log = log
        self._times: deque[float] = deque()

    async def __call__(self, error: UserError) -> None:
        """Start the server again. Raises the error if it has been started too often."""
        now = time.monotonic()
        while self._times and self._times[0] < now - WITHIN_SECONDS:
            self._times.popleft()
        if len(self._times) >= MOST_RESTARTS:
            raise error
        self._times.append(now)
        again = f"starting it again ({len(self._times)} of {MOST_RESTARTS})"
        self._log("\n".join(filter(None, [first_line(error), self._server.reasons(), again])))
        await asyncio.to_thread(self._server.kill)
        # Here and not in a thread, with whose end the server's would come.
        self._server.start()
        while not await asyncio.to_thread(self._server.is_ready):
            self._server.require_starting(now + LOADING_SECONDS)
            await asyncio.sleep(READY_SECONDS)
        self._log("Triton answers again")


@contextmanager
def started(
    options: ServeOptions, hurried: Callable[[], bool], log: Callable[[str], None]
) -> Iterator[Callable[[], AbstractAsyncContextManager[Backing]]]:
    """Run a server inside the block; yields a Backing connected to it. Raises UserError.

    hurried: whether the server's end must not take time.
    """
    installation = find()
    ports = Ports(options.http_port or 0, options.grpc_port or 0, options.metrics_port or 0)
    for service, port in vars(ports).items():  # a port in use would only show in the server's log
        with bound(HOST, port, f"--{service}-port"):
            pass
    with (
        _repository(options) as repository,
        Server(
            repository, ports=ports, ready_seconds=LOADING_SECONDS, installation=installation
        ) as server,
    ):
        try:
            yield lambda: _connected(server, options, log)
        except UserError:
            server.stop(0)  # a broken server would use all the time that it is given
            raise
        if hurried():
            server.stop(0)


@asynccontextmanager
async def _connected(
    server: Server, options: ServeOptions, log: Callable[[str], None]
) -> AsyncIterator[Backing]:
    generator = TritonGenerator(
        server.grpc, options.model_name, options.request_seconds, server.metrics
    )
    try:
        urls = server.http, server.grpc, server.metrics
        yield Backing(generator, server, server.log, *urls, restart=Restarts(server, log))
    finally:
        await generator.close()


@contextmanager
def _repository(options: ServeOptions) -> Iterator[Path]:
    """Write the model repository, a temporary one unless --repository is given."""
    if options.repository is not None and os.path.lexists(options.repository):
        raise UserError(f"{options.repository} exists already", "choose another --repository")
    model = {one.name: getattr(options, one.name) for one in fields(ModelOptions)}
    with tempfile.TemporaryDirectory(prefix="snapexport-serve-") as scratch:
        out = options.repository or Path(scratch) / "repository"
        yield write_repository(RepositoryOptions(out=out, device=options.device, **model))
