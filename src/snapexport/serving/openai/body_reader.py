"""Reads and parses the bodies of requests within bounds, off the event loop.

Knows no fields: `protocol` checks them. A parser holds the interpreter's lock, and a validator
looks at every value, so values and levels are counted first, by plain searches of the bytes.
"""

import asyncio

from starlette.requests import Request

from snapexport.serving.openai.errors import INVALID, ApiError, invalid
from snapexport.serving.openai.protocol import Body, parse

MOST_BYTES = 32 << 20
BODY_SECONDS = 60.0
"""Limits of a body: its size, and the time until it has arrived."""

MOST_BYTES_TOGETHER = 256 << 20
"""Bytes of all bodies that arrive or are parsed."""

MOST_VALUES = 1 << 20
"""Values of a body, which may have several prompts of token ids."""
MOST_NAMES = MOST_CONTAINERS = 1 << 14
"""Names, and objects and lists: a chat of 5,000 messages in parts has fewer."""
MOST_DEPTH = 64

SMALL_BYTES = 1 << 14
"""Smaller bodies take less time than a change of threads; larger ones wait for each other."""

_QUOTES_AND_STRUCTURE = b'"[]{},:'
_OTHERS = bytes(set(range(256)) - set(_QUOTES_AND_STRUCTURE))
_DEEPER = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class BodyReader:
    """Reads the bodies of one server."""

    def __init__(self) -> None:
        self._held = 0
        self._turn = asyncio.Lock()

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """The request's body, whose fields are right. Raises ApiError."""
        raw = bytearray()
        try:
            await self._receive(request, raw)
            if len(raw) <= SMALL_BYTES:
                return parse_bounded(kind, bytes(raw))
            async with self._turn:
                return await asyncio.to_thread(parse_bounded, kind, bytes(raw))
        finally:
            self._held -= len(raw)

    async def _receive(self, request: Request, raw: bytearray) -> None:
        """Append the whole body to `raw`. Raises ApiError if it is too large or too slow."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    raw += chunk
                    self._held += len(chunk)
                    if len(raw) > MOST_BYTES:
                        raise ApiError(413, f"the body is longer than {MOST_BYTES} bytes", INVALID)
                    if self._held > MOST_BYTES_TOGETHER:
                        message = "the bodies of other requests take all memory: try again later"
                        raise ApiError(503, message, code="unavailable")
        except TimeoutError:
            message = f"the body did not arrive within {BODY_SECONDS:g} s"
            raise ApiError(408, message, INVALID) from None


def parse_bounded(kind: type[Body], raw: bytes) -> Body:
    """Parse a body after counting its values. Raises ApiError."""
    require_modest(raw)
    return parse(kind, raw)


def require_modest(raw: bytes) -> None:
    """Refuse JSON of too many values, names or levels, without parsing it. Raises ApiError."""
    structure = _structure(raw)
    containers = structure.count(b"[") + structure.count(b"{")
    for count, most, what in (
        (containers, MOST_CONTAINERS, "objects and lists"),
        (structure.count(b":"), MOST_NAMES, "names"),
        (structure.count(b",") + containers + 1, MOST_VALUES, "values"),
    ):
        if count > most:
            raise _too_much(f"{most} {what}")
    depth = 0
    for byte in structure.translate(None, b",:"):
        depth += _DEEPER[byte]
        if depth > MOST_DEPTH:
            raise _too_much(f"{MOST_DEPTH} levels")


def _structure(raw: bytes) -> bytes:
    """Brackets, commas and colons outside of texts."""
    # Escapes first: what is left of a text then ends at its next quote.
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    bare = unescaped.translate(None, _OTHERS)
    if bare.count(b'"') > 2 * (MOST_VALUES + MOST_NAMES):
        raise _too_much(f"{MOST_VALUES} values")
    return b"".join(bare.split(b'"')[::2])


def _too_much(most: str) -> ApiError:
    return invalid(f"the body has more than {most}")
