"""Sizes of memory as people write and read them."""

import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(|[KMGT]I?)B?", re.IGNORECASE)


def size(text: str) -> int:
    """Bytes of a text like 80GiB, 80GB, 24G (decimal, as GB) or 4096. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no size: write it like 80GiB, 24GB or 512M")
    number, unit = match.groups()
    return int(float(number) * _UNITS[unit.upper()])
