"""Sizes of memory as people write them."""

from snapexport.contract.errors import UserError
from snapexport.contract.sizes import size


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


def spelled(nbytes: float) -> str:
    """Bytes for people: 15.9 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} TiB"


def written(nbytes: int) -> str:
    """Bytes as --memory takes them, rounded up: 16GiB, 300MiB."""
    unit, name = (2**30, "GiB") if nbytes >= 10 * 2**30 else (2**20, "MiB")
    return f"{-(-nbytes // unit)}{name}"
