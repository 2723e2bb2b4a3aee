"""A client's side of a request: its body, as far as there is one, and whether it is still there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from snapexport.serving.openai.errors import ApiError

MOST_BYTES = 32 << 20
BODY_SECONDS = 60.0

Result = TypeVar("Result")


class GoneError(Exception):
    """The client has left. Nobody is there to be told."""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises ApiError where it is too long, or too long in coming."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise ApiError(
                        413, f"the body is longer than {MOST_BYTES} bytes", "invalid_request_error"
                    )
    except TimeoutError:
        raise ApiError(
            408, f"the body did not come within {BODY_SECONDS:g} s", "invalid_request_error"
        ) from None
    return bytes(body)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work results in; it is cancelled if the client leaves. Raises GoneError.

    For after the body was read: what a connection receives then is its end.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise GoneError
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
