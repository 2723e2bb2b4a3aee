"""Sends a request's responses, and cancels it if its client has left. Knows no LLM.

If the worker is faster than a client, waiting outputs of a stream are joined into one response.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from snapexport.serving.model import TokenText
from snapexport.serving.streams import Stream, Streams, join_deltas
from snapexport.serving.triton.interface import Code
from snapexport.serving.triton.tensors import Inputs, tensors
from snapexport.serving.worker import CANCELLED, FailureCode, GenerationError

RUNNING_SECONDS = 0.01
"""Seconds between two looks for a running request's client: the request holds a batch slot."""
WAITING_SECONDS = 0.1
"""The same for a request that waits."""

CODES: Mapping[FailureCode, Code] = {
    "full": "UNAVAILABLE",
    "stopping": "UNAVAILABLE",
    "cancelled": "CANCELLED",
    "deadline": "CANCELLED",
    "internal": "INTERNAL",
    "invalid": "INVALID_ARG",
}


class Port(Protocol):
    """Sends to a request's client."""

    def send(self, tensors: Mapping[str, NDArray[Any]], is_last: bool) -> None:
        """Send one response."""

    def fail(self, message: str, code: Code) -> None:
        """Send the last response: an error."""

    def is_cancelled(self) -> bool:
        """Whether the client has left, or cancelled its request."""


@dataclass(frozen=True)
class Sender:
    """Answers requests in the event loop of `streams`."""

    streams: Streams
    text_of: TokenText

    async def answer(self, stream: Stream, inputs: Inputs, port: Port) -> None:
        """Send all responses of a request, the last of which may be its failure."""
        watching = asyncio.create_task(self._watch(stream, port))
        try:
            await self._send(stream, inputs, port)
        except GenerationError as error:
            port.fail(str(error), CODES[error.code])
        finally:
            watching.cancel()

    async def _send(self, stream: Stream, inputs: Inputs, port: Port) -> None:
        """A stream has a response for each output; other answers are sent at the end."""
        prompt_tokens = len(stream.request.prompt_token_ids)
        echo = str(inputs.prompt) if inputs.echo else ""
        held = []
        async with aclosing(self.streams.outputs(stream)) as outputs:
            async for output in outputs:
                held.append(output)
                is_last = output.finish_reason is not None
                if inputs.stream or is_last:
                    whole = join_deltas(held)
                    port.send(tensors(inputs, prompt_tokens, whole, echo, self.text_of), is_last)
                    held, echo = [], ""

    async def _watch(self, stream: Stream, port: Port) -> None:
        """Cancel the request once its client has left."""
        gone = False
        while not gone:
            await asyncio.sleep(WAITING_SECONDS if stream.started is None else RUNNING_SECONDS)
            gone = port.is_cancelled()
        self.streams.worker.cancel(stream, CANCELLED)
