"""Waits for what must not happen: the server ends by itself, or its model no longer answers.

Triton goes on when a model's process dies, and answers that it owed then never come (see
docs/triton.md). Whoever started `snapexport serve` can start it again: so it ends.
"""

import asyncio
from typing import NoReturn

from snapexport.contract.errors import UserError
from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.pulse import FAILED, Pulse
from snapexport.serving.triton.server import Server

SERVER_SECONDS = 0.5
MODEL_SECONDS = 2
"""How often each is looked at."""

FAILURES = 2
"""One may have been an accident; silence is none, for it may be the patience of a queue."""


async def server_ends(server: Server) -> NoReturn:
    """Raises UserError once the server's process is gone."""
    while server.is_running:
        await asyncio.sleep(SERVER_SECONDS)
    raise _ended("Triton's server has ended by itself", server)


async def model_fails(server: Server, pulse: Pulse) -> NoReturn:
    """Raises UserError once the model fails to answer time after time."""
    failures = 0
    while failures < FAILURES:
        await asyncio.sleep(MODEL_SECONDS)
        failures = failures + 1 if await _fails(pulse) else 0
    raise _ended("the model no longer answers", server)


async def _fails(pulse: Pulse) -> bool:
    try:
        await pulse.check()
    except ApiError as error:
        return error.code == FAILED
    return False


def _ended(what: str, server: Server) -> UserError:
    return UserError(
        f"{what}; the end of the server's log:\n{server.log()}",
        "look for the reason above, and start it again",
    )
