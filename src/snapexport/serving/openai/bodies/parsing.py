"""Reads bodies within bounds, off the event loop, and names all that is wrong with one.

A parser holds the interpreter's lock, and a validator looks at every value. So values and levels
are counted first, by plain searches of the bytes. Unsupported fields are refused by name unless
they can't change the answer. Knows no body's own fields.
"""

import asyncio
import codecs
import math
import re
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import from_json
from starlette.requests import Request

from snapexport.files.nearby import closest
from snapexport.serving.memory.parts import MOST_BYTES, MOST_BYTES_TOGETHER
from snapexport.serving.openai.http.errors import INVALID, UNSUPPORTED, ApiError, invalid


class Loose(BaseModel):
    """Refuses texts in place of numbers. A null counts as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None}


class Strict(Loose):
    """Refuses unknown fields too."""

    model_config = ConfigDict(extra="forbid", strict=True)


TEXT_OR_OBJECTS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]
}
"""As JSON Schema: where a text stands for a list of one part."""


MOST_NAMED = 24
"""Unsupported fields named in one message."""
MOST_WRONG = 3
"""Wrong values named in one message."""


@dataclass
class Refusals:
    """known: names of the body's fields."""

    known: Collection[str]
    _unsupported: list[str] = field(default_factory=list)
    _values: list[tuple[str, str]] = field(default_factory=list)
    _hint: str = ""
    _has_unsupported_value: bool = False

    def __bool__(self) -> bool:
        return bool(self._unsupported or self._values)

    def add_unsupported(self, name: str, allowed: Sequence[Any] = (), instead: str = "") -> None:
        """A field that is not supported, or only with the `allowed` values.

        instead: a field that is.
        """
        self._unsupported.append(name)
        if instead:
            self._hint = f" and use {instead}"
        elif allowed:
            self._hint = f" (or send {' or '.join(map(repr, allowed))})"
        else:
            close = closest(name[:64], self.known)
            self._hint = f" (did you mean {close}?)" if close else ""

    def add_errors(self, error: ValidationError, body: Mapping[str, Any]) -> None:
        """Add what a model found in the body: of a value that fits no choice, the first."""
        seen = set[str]()
        for one in error.errors(include_url=False, include_context=False):
            where = _place(body, one["loc"], one["type"] == "missing")
            if where in seen:
                continue
            seen.add(where)
            if one["type"] == "extra_forbidden":
                self.add_unsupported(where)
                continue
            self._has_unsupported_value |= one["type"] == UNSUPPORTED
            problem = one["msg"].removeprefix("Value error, ")
            text = f"{where}: {problem}" if where else problem
            self._values.append((where or problem.split()[0], text))

    def as_error(self) -> ApiError:
        """A 400, whose param is the first of the fields."""
        names = sorted(self._unsupported)
        texts = [text for _, text in self._values[:MOST_WRONG]]
        if names:
            texts.insert(0, self._sentence(names))
        unsupported = names or self._has_unsupported_value
        param = names[0] if names else self._values[0][0]
        return invalid("; ".join(texts), param, UNSUPPORTED if unsupported else None)

    def _sentence(self, names: Sequence[str]) -> str:
        if len(names) == 1:
            return f"{names[0]} is not supported: leave it out{self._hint}"
        named = [*names[:MOST_NAMED], "others"][: len(names)]
        return f"{', '.join(named[:-1])} and {named[-1]} are not supported: leave them out"


def _place(value: Any, location: Sequence[int | str], is_missing: bool) -> str:
    """The location without pydantic's names of choices, which the body does not have.

    is_missing: its last part.
    """
    parts: list[str] = []
    for part in location[: len(location) - is_missing]:
        try:
            value = value[part]
        except (LookupError, TypeError):
            if isinstance(part, str):
                continue
        parts.append(str(part))
    return ".".join((*parts, *map(str, location[len(location) - is_missing :])))


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": ({},),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "suffix": ("",),
    # Of other servers' own:
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "detokenize": (True,),
    "echo": (False,),
    "include_reasoning": (True,),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "return_token_ids": (False,),
    "vllm_xargs": ({},),
    "bad_words": ([],),
    "documents": ([],),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Values of unsupported fields that have no effect. Clients send them by default."""


IGNORED = frozenset(
    "cache_prompt cache_salt guided_decoding_backend inference_geo max_tool_calls metadata "
    "prediction priority prompt_cache_options prompt_cache_retention request_id safety_identifier "
    "service_tier store user user_profile_id verbosity workspace_id".split()
)
"""Fields that can't change the answer: any value is taken, without effect."""


OLDER = {"function_call": "tool_choice", "functions": "tools"}
"""OpenAI's older names, and what to use."""


Body = TypeVar("Body", bound=BaseModel)


GZIP = b"\x1f\x8b"


def parse(kind: type[Body], raw: bytes) -> Body:
    """Read and check a body. Raises ApiError, which names the field."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.startswith(GZIP):
        raise invalid("the body is gzip, not JSON: send it uncompressed")
    try:
        # Unlike the json module it refuses NaN and lone surrogates.
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        why = f"the body is not JSON: {error}"
        huge = "is not JSON: number out of range", "has a number of over 4,300 digits"
        raise invalid(why.replace(*huge)) from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    if _MAY_BE_HUGE.search(raw):
        for name, one in value.items():
            is_huge = isinstance(one, int) and abs(one) > sys.float_info.max
            if name not in IGNORED - kind.model_fields.keys() and (is_huge or not _is_finite(one)):
                raise invalid(f"{name} has a number beyond the range of a double", name)
    return check_body(kind, value)


_MAY_BE_HUGE = re.compile(rb"\d[eE]\+?\d{2}|\d{300}")


def _is_finite(value: Any) -> bool:
    """Whether a value of JSON has no number such as 1e999, of which Python makes infinity."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def check_body(kind: type[Body], value: Mapping[str, Any]) -> Body:
    """A body of these fields. Raises ApiError, which names what is wrong."""
    own = kind.model_fields.keys()
    refusals = Refusals(own)
    ignored = IGNORED - own
    given = {name: one for name, one in value.items() if one is not None and name not in ignored}
    for name in (given.keys() & NEUTRAL.keys()) - own:
        if given.pop(name) not in NEUTRAL[name]:
            refusals.add_unsupported(name, NEUTRAL[name], OLDER.get(name, ""))
    try:
        body = kind.model_validate(given)
    except ValidationError as error:
        refusals.add_errors(error, given)
        raise refusals.as_error() from None
    if refusals:
        raise refusals.as_error()
    return body


BODY_SECONDS = 60.0
"""The time until a body has arrived."""

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

    def __init__(self, most: int | None = None, together: int | None = None) -> None:
        """most: bytes of a body. together: of all bodies that are held. None: as above."""
        self._most, self._together = most, together
        self._held = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def body(self, request: Request, kind: type[Body]) -> AsyncIterator[Body]:
        """The request's body, whose fields are right, counted until the block ends.

        Raises ApiError.
        """
        raw = bytearray()
        taken = 0
        try:
            try:
                await self._receive(request, raw)
            finally:
                taken = len(raw)
            if taken <= SMALL_BYTES:
                body = parse_bounded(kind, bytes(raw))
            else:
                async with self._turn:
                    body = await asyncio.to_thread(parse_bounded, kind, bytes(raw))
            raw.clear()
            yield body
        finally:
            self._held -= taken

    async def _receive(self, request: Request, raw: bytearray) -> None:
        """Append the whole body to `raw`. Raises ApiError if it is too large or too slow."""
        most, together = self._most or MOST_BYTES, self._together or MOST_BYTES_TOGETHER
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    raw += chunk
                    self._held += len(chunk)
                    if len(raw) > most:
                        raise ApiError(413, f"the body is longer than {most} bytes", INVALID)
                    if self._held > together:
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
