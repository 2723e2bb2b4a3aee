"""Checks whether the model answers, and ends the command if it no longer does.

The model is healthy if a token was produced in the last 5 s, a one-token probe succeeds, or it
reports a full queue; it is unhealthy after 30 s of silence.
"""

import asyncio
import time
from contextlib import aclosing
from typing import NoReturn

from snapexport.errors import UserError
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.serving.openai.http.errors import ApiError
from snapexport.serving.streams import Streams
from snapexport.serving.worker import GenerationError

FRESH_SECONDS = 5.0
"""Seconds for which an output counts as a sign of health."""

PATIENCE_SECONDS = 30.0
"""Seconds that a probe may take; it may wait for long prompts."""

SILENT, FAILED = "model_silent", "model_failed"
"""Codes of an unhealthy model: the probe had no answer in time, or an error."""

PROBE = Request((0,), SamplingParams(max_tokens=1, ignore_eos=True))

CHECK_SECONDS = 2.0
"""Seconds between two checks of `supervise`."""

FAILURES = 2
"""Failed checks in a row that end the command. Silence is not a failure: the queue may be long."""


class Health:
    """Checks the model of one server."""

    def __init__(self, streams: Streams, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.streams = streams
        self._patience = patience_seconds
        self._probing = asyncio.Lock()

    async def check(self) -> None:
        """Return if the model is healthy. Raises ApiError."""
        async with self._probing:  # one probe answers all who wait for it
            if time.monotonic() - self.streams.last_output < FRESH_SECONDS:
                return
            try:
                await self._probe()
            except GenerationError as error:
                if error.code != "full":
                    code = SILENT if error.code == "deadline" else FAILED
                    raise _unhealthy(str(error), code) from None

    async def supervise(self) -> NoReturn:
        """Raise UserError once the model can no longer answer."""
        failures = 0
        while failures < FAILURES:
            await asyncio.sleep(CHECK_SECONDS)
            if not self.streams.worker.is_running:
                raise _end_error("the model's thread has ended")
            failed = self.streams.needs_probe and await self._fails()
            failures = failures + 1 if failed else 0
        raise _end_error("the model no longer answers")

    async def _fails(self) -> bool:
        try:
            await self.check()
        except ApiError as error:
            return bool(error.body["error"]["code"] == FAILED)
        return False

    async def _probe(self) -> None:
        try:
            async with (
                asyncio.timeout(self._patience),
                aclosing(self.streams.stream(PROBE)) as outputs,
            ):
                async for _ in outputs:
                    pass
        except TimeoutError:
            message = f"no token came within {self._patience:g} s"
            raise _unhealthy(message, SILENT) from None


def _unhealthy(why: str, code: str) -> ApiError:
    return ApiError(503, f"the model does not answer: {why}", code=code)


def _end_error(why: str) -> UserError:
    return UserError(why, "see the log above, and start the server again")
