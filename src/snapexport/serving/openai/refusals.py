"""Collects all that is wrong with a body, so that one answer names it.

Knows no field.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from snapexport.serving.openai.errors import UNSUPPORTED, ApiError, invalid

MOST_NAMED = 24
"""Unsupported fields named in one message."""
MOST_VALUES = 3
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
            close = get_close_matches(name[:64], self.known, 1, 0.8)
            self._hint = f" (did you mean {close[0]}?)" if close else ""

    def add_errors(self, error: ValidationError, body: Mapping[str, Any]) -> None:
        """What a model found in the body: of a value that fits no choice, the first."""
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
        texts = [text for _, text in self._values[:MOST_VALUES]]
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
