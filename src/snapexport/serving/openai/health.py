"""Checks whether the model answers; if not, starts it again or ends the command.

`check` is healthy if a token was produced in the last 5 s, a one-token probe succeeds, or the model
reports a full queue; unhealthy after 30 s of silence. A live process is not enough: Triton 24.10
reports "ready" after a Python backend's process was killed (server #7230).
"""

import asyncio
import time
from contextlib import aclosing
from typing import NoReturn

from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.serving.child_process import Backing
from snapexport.serving.generator import GenerationError, Generator
from snapexport.serving.openai.errors import ApiError

FRESH_SECONDS = 5.0
"""Seconds for which an output counts as a sign of health."""

PATIENCE_SECONDS = 30.0
"""Seconds that a probe may take; it may wait for long prompts."""

SILENT, FAILED = "model_silent", "model_failed"
"""Codes of an unhealthy model: the probe had no answer in time, or an error."""

PROBE = Request((0,), SamplingParams(max_tokens=1, ignore_eos=True))

PROCESS_SECONDS, MODEL_SECONDS = 0.5, 2.0
"""Seconds between `supervise`'s checks of the process, and of the model."""

FAILURES = 2
"""Failed checks in a row that end the command. Silence is no failure: the queue may be long."""


class Health:
    """Checks one generator."""

    def __init__(self, generator: Generator, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.generator = generator
        self._patience = patience_seconds
        self._probing = asyncio.Lock()

    async def check(self) -> None:
        """Return if the model is healthy. Raises ApiError."""
        async with self._probing:  # one probe answers all who wait for it
            if time.monotonic() - self.generator.last_output < FRESH_SECONDS:
                return
            try:
                await self._probe()
            except GenerationError as error:
                if error.code != "full":
                    code = SILENT if error.code == "deadline" else FAILED
                    raise _unhealthy(str(error), code) from None

    async def require_token(self) -> None:
        """Return once the model has answered the probe. Raises ApiError."""
        try:
            await self._probe()
        except GenerationError as error:
            raise _unhealthy(str(error), FAILED) from None

    async def _probe(self) -> None:
        try:
            async with (
                asyncio.timeout(self._patience),
                aclosing(self.generator.stream(PROBE)) as outputs,
            ):
                async for _ in outputs:
                    pass
        except TimeoutError:
            message = f"no token came within {self._patience:g} s"
            raise _unhealthy(message, SILENT) from None


def _unhealthy(why: str, code: str) -> ApiError:
    return ApiError(503, f"the model does not answer: {why}", code=code)


async def supervise(backing: Backing, health: Health) -> NoReturn:
    """Start again what runs the model whenever it can no longer answer. Raises UserError."""
    while True:
        await backing.recover(await _end(backing, health))


async def _end(backing: Backing, health: Health) -> str:
    """Wait until the model can no longer answer; the reason."""
    failures, next_check = 0, time.monotonic() + MODEL_SECONDS
    while failures < FAILURES:
        await asyncio.sleep(min(PROCESS_SECONDS, MODEL_SECONDS))
        if not backing.supervised.is_running:
            return "the server has ended by itself"
        if time.monotonic() >= next_check:
            failed = backing.supervised.needs_probe and await _fails(health)
            failures = failures + 1 if failed else 0
            next_check = time.monotonic() + MODEL_SECONDS
    return "the model no longer answers"


async def _fails(health: Health) -> bool:
    try:
        await health.check()
    except ApiError as error:
        return bool(error.body["error"]["code"] == FAILED)
    return False
