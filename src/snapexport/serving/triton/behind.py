"""Puts a Triton server behind the API: writes a repository, starts the server, connects to it."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import fields
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.serving.backing import Backing
from snapexport.serving.openai.http_server import bound
from snapexport.serving.options import ModelOptions, ServeOptions
from snapexport.serving.triton.client import TritonGenerator
from snapexport.serving.triton.installation import find
from snapexport.serving.triton.options import RepositoryOptions
from snapexport.serving.triton.repository import write_repository
from snapexport.serving.triton.server import HOST, Ports, Server

LOADING_SECONDS = 900
"""Seconds for the server to load the build."""


@contextmanager
def started(options: ServeOptions) -> Iterator[Callable[[], AbstractAsyncContextManager[Backing]]]:
    """Run a server inside the block; yields a Backing connected to it. Raises UserError."""
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
            yield lambda: _connected(server, options)
        except UserError:
            server.stop(0)  # a broken server would use all the time that it is given
            raise


@asynccontextmanager
async def _connected(server: Server, options: ServeOptions) -> AsyncIterator[Backing]:
    generator = TritonGenerator(
        server.grpc, options.model_name, options.request_seconds, server.metrics
    )
    try:
        yield Backing(generator, server, server.log, server.http, server.grpc, server.metrics)
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
