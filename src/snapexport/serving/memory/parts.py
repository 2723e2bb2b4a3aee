"""Defines a bound of the process's memory: its parts, and where each figure comes from."""

from dataclasses import dataclass, replace
from typing import Literal

from snapexport.contract.memory import spelled

Source = Literal["exact", "measured", "limit"]
"""exact: follows from shapes or sizes of files. measured: fitted to runs, and rounded up. limit:
the server refuses or ends what would take more."""


MOST_BYTES = 32 << 20
"""Bytes of a body of a request, where the memory is not bounded."""
MOST_BYTES_TOGETHER = 256 << 20
"""Bytes of all bodies that arrive, or whose prompts are not read yet."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes that something takes at most."""

    name: str
    nbytes: int
    source: Source


@dataclass(frozen=True)
class MemoryBound:
    """The most resident bytes of a process (RSS, as `ps` shows it).

    Anonymous memory and mapped files, of which each page counts as often as it is mapped. Processes
    that the server starts beside itself, for chat templates and grammars, have bounds of their own.
    """

    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def of_requests(self) -> int:
        """Bytes that come and go with requests."""
        return sum(part.nbytes for part in self.parts if part.source == "limit")

    def within(self, memory: int) -> "MemoryBound":
        """The same with what is left of a memory as a part: it fits, and is the bound then."""
        return replace(self, parts=(*self.parts, Part("left", memory - self.nbytes, "limit")))

    def __str__(self) -> str:
        shown = sorted(self.parts, key=lambda part: part.nbytes, reverse=True)
        named = ", ".join(f"{part.name} {spelled(part.nbytes)}" for part in shown if part.nbytes)
        return f"{spelled(self.nbytes)}: {named}"
