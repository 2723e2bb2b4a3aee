"""Waits for what another process does, for as long as a busy machine may need."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 300.0
"""Seconds after which it will not happen: no test waits for as long if all is well."""


def until(has_happened: Callable[[], bool]) -> None:
    """Return as soon as it has happened."""
    end = time.monotonic() + PATIENCE
    while not has_happened():
        assert time.monotonic() < end, f"it has not happened in {PATIENCE:.0f} seconds"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a process of another parent is gone."""
    return not Path(f"/proc/{pid}").exists()


def is_waiting(pid: int) -> bool:
    """Whether a process sleeps, until somebody gives it something to do."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
