"""Reads the value of --memory."""

from snapexport.contract.bytes import size
from snapexport.contract.errors import UserError


def parse_size(text: str) -> int:
    """Bytes of what --memory was given. Raises UserError."""
    try:
        nbytes = size(text)
    except ValueError:
        raise UserError(
            f"--memory '{text}' is no size", "write it like 80GiB, 24GB or 512M"
        ) from None
    if nbytes < 1:
        raise UserError(f"--memory {text} leaves nothing", "write it like 80GiB, 24GB or 512M")
    return nbytes
