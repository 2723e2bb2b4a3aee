"""Notes from a decode worker to a prefill worker: `hold` a row still, or `end` its lease."""

import re

HOLD, END = "hold", "end"
_NOTE = re.compile(rb"(hold|end) (\d{1,19})")


def note(verb: str, lease: int) -> bytes:
    """The note's bytes."""
    return f"{verb} {lease}".encode()


def parse(text: bytes) -> tuple[str, int]:
    """The note's verb and lease; an empty verb for anything else."""
    found = _NOTE.fullmatch(text)
    return (found[1].decode(), int(found[2])) if found else ("", 0)
