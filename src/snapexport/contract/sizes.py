"""Sizes in bytes: of tensors, parsed from text and written as text."""

import math
import re

from snapexport.contract.manifest import TensorSpec
from snapexport.files.dtypes import BY_NUMPY

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(|[KMGT]I?)B?", re.IGNORECASE)


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of one input or output."""
    return math.prod(spec.shape) * BY_NUMPY[spec.dtype].bytes


def size(text: str) -> int:
    """Parse a size such as 80GiB, 80GB, 24G (= 24GB) or 4096. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no size: write it like 80GiB, 24GB or 512M")
    number, unit = match.groups()
    return int(float(number) * _UNITS[unit.upper()])


def spelled(nbytes: float) -> str:
    """Format bytes for messages: 15.96 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def in_mib(nbytes: float) -> float:
    """MiB, for a column whose head names the unit."""
    return nbytes / 2**20


def as_flag(nbytes: int) -> str:
    """Format bytes as --memory takes them, rounded up: 16GiB, 300MiB."""
    unit, name = (2**30, "GiB") if nbytes >= 10 * 2**30 else (2**20, "MiB")
    return f"{-(-nbytes // unit)}{name}"
