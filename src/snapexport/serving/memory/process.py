"""Reads the resident memory of this process, and keeps its allocator from holding what is free."""

import ctypes
import resource
from contextlib import suppress
from pathlib import Path

_ARENA_MAX = -8
"""glibc's M_ARENA_MAX."""
_ARENAS = 2
"""Arenas of malloc. One for each thread would keep what each had at its peak."""


def resident_bytes() -> int:
    """Resident memory of this process, as `ps` shows it. Raises OSError without /proc."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def limit_arenas() -> None:
    """Let all threads share few arenas, where the C library is glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


def trim() -> None:
    """Give free memory back to the system, where the C library is glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
