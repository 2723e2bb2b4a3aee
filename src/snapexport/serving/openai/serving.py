"""The whole of `snapexport serve`: a repository, Triton's server on it, and the API before it.

Each is begun after the one that it needs, and ended before it.
"""

import asyncio
import os
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.serving.openai.addresses import Addresses, url_of
from snapexport.serving.openai.app import Api
from snapexport.serving.openai.ending import Ending
from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.front import drain, first_of, listening
from snapexport.serving.openai.listener import bound
from snapexport.serving.openai.options import ServeOptions
from snapexport.serving.openai.pulse import Pulse
from snapexport.serving.openai.reader import Reader
from snapexport.serving.openai.triton import TritonGenerator
from snapexport.serving.openai.watch import model_fails, server_ends
from snapexport.serving.triton.installation import find
from snapexport.serving.triton.repository import write_repository
from snapexport.serving.triton.server import HOST, Ports, Server

LOADING_SECONDS = 900
"""For the server to load the build, and then for its first answer."""

PATIENCE_SECONDS = 30
"""For a sign of life afterwards: a prompt of one token may have to wait behind long ones."""


def serve(
    options: ServeOptions,
    tell: Callable[[Addresses], None],
    tell_ending: Callable[[float], None],
) -> None:
    """Serve until a signal comes. Raises UserError.

    tell: called once a real prompt was answered. tell_ending: with the seconds that running answers
    have left, once a signal has come.
    """
    installation = find()
    reader = Reader.open(options.build, options.max_pending)
    ports = Ports(options.http_port, options.grpc_port, options.metrics_port)
    with ExitStack() as stack:
        listener = stack.enter_context(bound(options.host, options.port, "--port"))
        _require_free(ports)
        ending = stack.enter_context(Ending())
        repository = stack.enter_context(_repository(options))
        starting = Server(
            repository, ports=ports, ready_seconds=LOADING_SECONDS, installation=installation
        )
        server = stack.enter_context(starting)
        try:
            asyncio.run(_answer(options, reader, listener, server, ending, tell, tell_ending))
        except UserError:
            server.stop(0)  # a broken one would make use of all the time that it is given
            raise


@contextmanager
def _repository(options: ServeOptions) -> Iterator[Path]:
    """The model repository, for as long as the block lasts unless the user keeps it."""
    if options.repository is not None:
        if os.path.lexists(options.repository):
            raise UserError(f"{options.repository} exists already", "choose another --repository")
        yield write_repository(options.for_repository(options.repository))
        return
    with tempfile.TemporaryDirectory(prefix="snapexport-serve-") as scratch:
        yield write_repository(options.for_repository(Path(scratch) / "repository"))


async def _answer(
    options: ServeOptions,
    reader: Reader,
    listener: socket.socket,
    server: Server,
    ending: Ending,
    tell: Callable[[Addresses], None],
    tell_ending: Callable[[float], None],
) -> None:
    name = options.for_repository(options.build).model_name
    generator = TritonGenerator(server.grpc, name, options.request_seconds)
    api = Api(name, reader, Pulse(generator, PATIENCE_SECONDS), lambda: _metrics(server.metrics))
    try:
        await _require_answer(generator, server)
        ending.listen()
        async with listening(api, listener):
            tell(Addresses(name, url_of(listener), server.http, server.grpc, server.metrics))
            await _until_the_end(api, generator, server, ending)
            tell_ending(options.drain_seconds)
            await drain(api, generator.close, ending, options.drain_seconds)
    finally:
        await generator.close()


async def _until_the_end(
    api: Api, generator: TritonGenerator, server: Server, ending: Ending
) -> None:
    """Wait for a signal; after a failure nothing is left to wait for. Raises UserError."""
    try:
        await first_of(ending.asked.wait(), server_ends(server), model_fails(server, api.pulse))
    except BaseException:
        await drain(api, generator.close, ending, 0)
        raise


async def _require_answer(generator: TritonGenerator, server: Server) -> None:
    """Triton's word that it is ready says nothing of the model."""
    try:
        await first_of(Pulse(generator, LOADING_SECONDS).require_token(), server_ends(server))
    except ApiError as error:
        raise UserError(f"{error}\n{server.log()}", "look for the reason above") from None


async def _metrics(url: str) -> bytes:
    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=5) as answer:
            content: bytes = answer.read()
            return content

    try:
        return await asyncio.to_thread(fetch)
    except OSError as error:
        raise ApiError(503, f"Triton's metrics cannot be read: {error}") from None


def _require_free(ports: Ports) -> None:
    """A server that can't have its port says so in its log alone, after the build was loaded."""
    for service, port in vars(ports).items():
        with bound(HOST, port, f"--{service}-port"):
            pass
