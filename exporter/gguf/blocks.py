"""Takes the blocks of GGUF's plain and K types apart: integers, and their scales and minima.

A function takes blocks [n,bytes]. Nothing is rounded: what is multiplied here, the package `gguf`
multiplies too. Integers are shifted so that zero lies in the middle of their container.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Parts(NamedTuple):
    """q: [n,elements of a block]. scales and minima: [n,those of a block]."""

    q: Bytes
    scales: Floats
    minima: Floats | None = None


def fp16(raw: Bytes) -> Floats:
    """Two bytes each."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def fields(raw: Bytes, run: int, bits: int) -> Bytes:
    """Numbers of a few bits: of `run` bytes first the lowest bits of each, then the next."""
    shifts = np.arange(0, 8, bits).astype(np.uint8)[:, None]
    found: Bytes = (raw.reshape(len(raw), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return found.reshape(len(raw), -1)


def joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Numbers whose lowest `bits` bits are `low`."""
    found: Bytes = low | (high << np.uint8(bits))
    return found


def low_bits_first(raw: Bytes) -> Bytes:
    """A number for each bit, those of a byte from the lowest on."""
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little")


def q1_0(raw: Bytes) -> Parts:
    """128 signs after a scale: 0 is negative."""
    return Parts(np.uint8(7) + np.uint8(2) * low_bits_first(raw[:, 2:]), fp16(raw[:, :2]))


def q4_0(raw: Bytes) -> Parts:
    """32 integers of 4 bits after a scale."""
    return Parts(fields(raw[:, 2:], 16, 4), fp16(raw[:, :2]))


def q4_1(raw: Bytes) -> Parts:
    """32 integers of 4 bits after a scale and a minimum."""
    return Parts(fields(raw[:, 4:], 16, 4), fp16(raw[:, :2]), fp16(raw[:, 2:4]))


def q5_0(raw: Bytes) -> Parts:
    """32 integers of 5 bits after a scale: the highest bits, then the others."""
    q = joined(fields(raw[:, 6:], 16, 4), low_bits_first(raw[:, 2:6]), 4)
    return Parts(q + np.uint8(128 - 16), fp16(raw[:, :2]))


def q5_1(raw: Bytes) -> Parts:
    """As Q5_0, with a minimum."""
    q = joined(fields(raw[:, 8:], 16, 4), low_bits_first(raw[:, 4:8]), 4)
    return Parts(q, fp16(raw[:, :2]), fp16(raw[:, 2:4]))


def q8_0(raw: Bytes) -> Parts:
    """32 signed bytes after a scale."""
    return Parts(raw[:, 2:] ^ np.uint8(128), fp16(raw[:, :2]))


def q2_k(raw: Bytes) -> Parts:
    """256 integers of 2 bits; scales and minima of 16 parts in 4 bits each."""
    both, d, least = raw[:, :16], fp16(raw[:, 80:82]), fp16(raw[:, 82:84])
    return Parts(fields(raw[:, 16:80], 32, 2), d * (both & 15), -(least * (both >> 4)))


def q3_k(raw: Bytes) -> Parts:
    """256 integers of 3 bits, the highest apart; scales of 16 parts in 6 bits."""
    q = joined(fields(raw[:, 32:96], 32, 2), fields(raw[:, :32], 32, 1), 2)
    factors = joined(fields(raw[:, 96:104], 8, 4), fields(raw[:, 104:108], 4, 2), 4)
    return Parts(q + np.uint8(8 - 4), fp16(raw[:, 108:]) * _signed(factors))


def q4_k(raw: Bytes) -> Parts:
    """256 integers of 4 bits after the scales and minima of 8 parts."""
    return Parts(fields(raw[:, 16:], 32, 4), *_scales_and_minima(raw))


def q5_k(raw: Bytes) -> Parts:
    """As Q4_K, with the highest bits apart."""
    q = joined(fields(raw[:, 48:], 32, 4), fields(raw[:, 16:48], 32, 1), 4)
    return Parts(q, *_scales_and_minima(raw))


def q6_k(raw: Bytes) -> Parts:
    """256 integers of 6 bits, the highest two apart; scales of 16 parts in a byte."""
    q = joined(fields(raw[:, :128], 64, 4), fields(raw[:, 128:192], 32, 2), 4)
    factors = np.ascontiguousarray(raw[:, 192:208]).view(np.int8)
    return Parts(q + np.uint8(128 - 32), fp16(raw[:, 208:]) * factors)


def _scales_and_minima(raw: Bytes) -> tuple[Floats, Floats]:
    """Of 8 parts of a block, in 6 bits each: 4 bytes of scales, of minima, and of both."""
    d, least, packed = fp16(raw[:, :2]), fp16(raw[:, 2:4]), raw[:, 4:16]
    scales, minima, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    high_scales = (both & 15) | (scales >> 2) & 0x30
    high_minima = (both >> 4) | (minima >> 2) & 0x30
    scales = np.concatenate([scales & 63, high_scales], axis=-1)
    minima = np.concatenate([minima & 63, high_minima], axis=-1)
    return d * scales, -(least * minima)


def _signed(factors: Bytes) -> NDArray[np.int8]:
    """6 bits, of which 32 stands for 0."""
    return factors.view(np.int8) - np.int8(32)
