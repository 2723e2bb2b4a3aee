"""Whether the model still answers: health that stays "ready" after its process died is no health.

Triton 24.10 goes on telling "ready" once a Python backend's process was killed (server #7230). So
life is an answer: one that came of late, or that of a prompt of one token.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from snapexport.runtime.requests import Request, SamplingParams
from snapexport.serving.openai.errors import UNAVAILABLE, ApiError
from snapexport.serving.openai.pieces import Generator, Piece

FRESH_SECONDS = 5.0
"""A sign of life counts for so long."""

SILENT, FAILED = "model_silent", "model_failed"
"""Codes of a check: nothing came in time, or an error did."""

PROBE = Request((0,), SamplingParams(max_tokens=1, ignore_eos=True))


class Pulse:
    """A generator that notes when it brought something, and is asked for a token if it did not."""

    def __init__(self, generator: Generator, patience_seconds: float) -> None:
        self._generator = generator
        self._patience = patience_seconds
        self._last = float("-inf")
        self._probing = asyncio.Lock()

    async def stream(self, request: Request) -> AsyncGenerator[Piece]:
        """The generator's own pieces."""
        async with aclosing(self._generator.stream(request)) as pieces:
            async for piece in pieces:
                self._last = time.monotonic()
                yield piece

    async def check(self) -> None:
        """Return if there was a sign of life, or one comes in time. Raises ApiError."""
        async with self._probing:  # many may ask, one probe answers them
            if time.monotonic() - self._last < FRESH_SECONDS:
                return
            try:
                await self.require_token()
            except ApiError as error:
                if error.code != UNAVAILABLE:  # a full queue: whoever refuses is alive
                    raise

    async def require_token(self) -> None:
        """Return once the model has answered a prompt of one token. Raises ApiError."""
        try:
            async with asyncio.timeout(self._patience):
                await self._probe()
        except TimeoutError:
            raise _lifeless(f"none came in {self._patience:g} s", SILENT) from None
        except ApiError as error:
            raise _lifeless(str(error), _code_of(error)) from None

    async def _probe(self) -> None:
        async with aclosing(self.stream(PROBE)) as pieces:
            async for _ in pieces:
                pass


def _lifeless(why: str, code: str) -> ApiError:
    return ApiError(503, f"the model gives no answer: {why}", code=code)


def _code_of(error: ApiError) -> str:
    """What an error in place of a token means."""
    if error.status == 504:
        return SILENT
    return UNAVAILABLE if error.code == UNAVAILABLE else FAILED
