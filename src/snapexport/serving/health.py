"""Says whether the model lives, without waiting for it, and ends the command if it fails.

A finished piece of work is life: a decode step, or a chunk of a prompt. A piece that takes far
longer than any before is silence. Where no request has shown life lately a token is asked for, but
no check waits for it: it might wait for prompts that came meanwhile.
"""

import asyncio
import time
from contextlib import aclosing
from typing import NoReturn

from snapexport.errors import UserError
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.serving.streams import Streams
from snapexport.serving.worker import GenerationError

FRESH_SECONDS = 5.0
"""Seconds for which a finished piece counts as a sign of health."""

WAIT_SECONDS = 0.1
"""Most seconds that a check takes."""

SILENT, FAILED = "model_silent", "model_failed"
"""Codes of an unhealthy model: a piece of work does not end, or the token had an error."""

PROBE = Request((0,), SamplingParams(max_tokens=1, ignore_eos=True))

CHECK_SECONDS = 2.0
"""Seconds between two checks of `supervise`."""

FAILURES = 2
"""Failed checks in a row that end the command. Silence is not a failure: a piece may be long."""

OTHERS = ("full", "deadline", "cancelled")
"""Ends of a probe that say nothing of the model."""


class UnhealthyError(Exception):
    """The model is dead or silent."""

    def __init__(self, why: str, code: str) -> None:
        super().__init__(f"the model does not answer: {why}")
        self.code = code


class Health:
    """Checks the model of one server, in its event loop."""

    def __init__(self, streams: Streams, asks: bool = True) -> None:
        """asks: for a token where nothing runs; a worker without prefill can't."""
        self.streams, self._asks = streams, asks
        self._probe: asyncio.Task[None] | None = None
        self._error = ""
        """Of the last probe."""

    async def check(self) -> None:
        """Return if the model is healthy. Raises UnhealthyError."""
        fresh = time.monotonic() - self.streams.pulse.last < FRESH_SECONDS
        if self._is_probing or (self._asks and self.streams.worker.is_idle and not fresh):
            await asyncio.wait([self._begin_probe()], timeout=WAIT_SECONDS)
        pulse = self.streams.pulse
        if not self.streams.worker.is_running:
            raise UnhealthyError("its thread has ended", FAILED)
        if pulse.is_silent:
            raise UnhealthyError(f"no step has ended for {pulse.silence:.1f} s", SILENT)
        if self._error and self.streams.needs_probe:
            raise UnhealthyError(self._error, FAILED)

    async def supervise(self) -> NoReturn:
        """Raise UserError once the model can no longer answer."""
        failures = 0
        while failures < FAILURES:
            await asyncio.sleep(CHECK_SECONDS)
            if not self.streams.worker.is_running:
                raise _end_error("the model's thread has ended")
            failures = failures + 1 if self.streams.needs_probe and await self._fails() else 0
        raise _end_error("the model no longer answers")

    async def _fails(self) -> bool:
        await asyncio.wait([self._begin_probe()])
        return bool(self._error) and self.streams.needs_probe

    @property
    def _is_probing(self) -> bool:
        return self._probe is not None and not self._probe.done()

    def _begin_probe(self) -> asyncio.Task[None]:
        """The probe that runs, or a new one: one answers all who wait for it."""
        if self._probe is None or not self._is_probing:
            self._probe = asyncio.create_task(self._ask())
        return self._probe

    async def _ask(self) -> None:
        """Ask for a token, and note how that ends."""
        error = ""
        try:
            async with aclosing(self.streams.stream(PROBE)) as outputs:
                async for _ in outputs:
                    pass
        except GenerationError as failure:
            error = "" if failure.code in OTHERS else str(failure)
        self._error = error


def _end_error(why: str) -> UserError:
    return UserError(why, "see the log above, and start the server again")
