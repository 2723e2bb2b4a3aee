"""Unpacks integers of a few bits from words of 32 bits, from the lowest bit on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD = 32


def unpacked(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """The first `count` integers of each row of words [n,W]. They may go across words."""
    rows = len(words)
    packed = np.ascontiguousarray(words, "<u4")
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits).astype(np.uint8)
        mask = np.uint8((1 << bits) - 1)
        whole: NDArray[np.uint8] = (packed.view(np.uint8)[..., None] >> shifts) & mask
        return whole.reshape(rows, -1)[:, :count]
    return _across_words(packed, bits)[:, :count]


def words_for(count: int, bits: int) -> int:
    """Words that hold `count` integers."""
    return -(-count * bits // _WORD)


def _across_words(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """32 integers lie in `bits` words."""
    rows, width = packed.shape
    periods = np.pad(packed, ((0, 0), (0, -width % bits))).reshape(rows, -1, bits)
    found = np.empty((rows, periods.shape[1], _WORD), np.uint8)
    for place in range(_WORD):
        word, shift = divmod(place * bits, _WORD)
        value = periods[..., word] >> np.uint32(shift)
        if shift + bits > _WORD:
            value = value | periods[..., word + 1] << np.uint32(_WORD - shift)
        found[..., place] = value & np.uint32((1 << bits) - 1)
    return found.reshape(rows, -1)
