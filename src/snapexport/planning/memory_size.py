"""Sizes of memory as people write them."""

import re

from snapexport.contract.errors import UserError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(|[KMGT]I?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a text like 80GiB, 80GB, 24G (decimal, as GB) or 4096. Raises UserError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--memory '{text}' is no size", "write it like 80GiB, 24GB or 512M")
    number, unit = match.groups()
    nbytes = int(float(number) * _UNITS[unit.upper()])
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
