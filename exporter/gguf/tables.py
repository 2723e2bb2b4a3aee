"""Takes the blocks of GGUF's types with tables of values apart: IQ, TQ, and floats of 4 bits.

All values of these tables are small integers, times a power of two at most.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.gguf.blocks import (
    Bytes,
    Floats,
    Parts,
    fields,
    fp16,
    joined,
    low_bits_first,
)

_MIDDLE = 128
"""Stands for 0 in a container of 8 bits."""
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12)
"""The values of e2m1, doubled."""
_E8M0_NAN = 255


def iq4_nl(raw: Bytes) -> Parts:
    """32 places in a table of 16 values after a scale."""
    return Parts(_iq4()[fields(raw[:, 2:], 16, 4)], fp16(raw[:, :2]))


def iq4_xs(raw: Bytes) -> Parts:
    """256 places in IQ4_NL's table; scales of 8 parts in 6 bits."""
    high = _spread(_words(raw[:, 2:4], "<u2"), 8, 2)
    factors = joined(fields(raw[:, 4:8], 1, 4), high.astype(np.uint8), 4)
    scales = fp16(raw[:, :2]) * (factors.view(np.int8) - np.int8(32))
    return Parts(_iq4()[fields(raw[:, 8:], 16, 4)], scales)


def mxfp4(raw: Bytes) -> Parts:
    """Half a power of two for each block, as the values are doubled."""
    scales = np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128).astype(np.float32)
    scales[raw[:, :1] == _E8M0_NAN] = np.nan
    return Parts(_fp4()[fields(raw[:, 1:], 16, 4)], scales)


def nvfp4(raw: Bytes) -> Parts:
    """64 floats of 4 bits after the scales of 4 parts, each a float of 8 bits."""
    q = _fp4()[fields(raw[:, 4:], 8, 4)]
    return Parts(q, _unsigned_e4m3()[raw[:, :4]] * np.float32(0.5))


def tq1_0(raw: Bytes) -> Parts:
    """5 digits of base 3 in a byte, the first one the highest."""
    parts = (raw[:, :32], 5, 32), (raw[:, 32:48], 5, 16), (raw[:, 48:52], 4, 4)
    q = np.concatenate([_digits(*one) for one in parts], axis=-1)
    return Parts(q + np.uint8(8 - 1), fp16(raw[:, 52:]))


def tq2_0(raw: Bytes) -> Parts:
    """256 integers of 2 bits, of which 1 stands for 0."""
    return Parts(fields(raw[:, :64], 32, 2) + np.uint8(8 - 1), fp16(raw[:, 64:]))


def iq2_xxs(raw: Bytes) -> Parts:
    """8 parts of 8 bytes: 4 places in a table, then 4 numbers of signs and a factor."""
    pairs = _words(raw[:, 2:], "<u4").reshape(len(raw), -1, 2)
    places = np.ascontiguousarray(pairs[..., 0]).view(np.uint8).reshape(len(raw), -1)
    factors = np.float32(0.5) + (pairs[..., 1] >> 28).astype(np.float32)
    q = _signed("IQ2_XXS", places, _listed_signs(pairs[..., 1]))
    return Parts(q, fp16(raw[:, :2]) * factors * np.float32(0.25))


def iq2_xs(raw: Bytes) -> Parts:
    """32 words, each a place in a table and a number of signs; 16 factors in 4 bits."""
    words = _words(raw[:, 2:66], "<u2")
    q = _signed("IQ2_XS", words & 511, low_bits_first(_signs()[words >> 9]))
    return Parts(q, _quarters(raw[:, :2], raw[:, 66:]))


def iq2_s(raw: Bytes) -> Parts:
    """Places in a table in 10 bits, the highest two apart; a bit for each sign."""
    places = raw[:, 2:34] | fields(raw[:, 66:74], 1, 2).astype(np.uint16) << 8
    q = _signed("IQ2_S", places, low_bits_first(raw[:, 34:66]))
    return Parts(q, _quarters(raw[:, :2], raw[:, 74:]))


def iq3_xxs(raw: Bytes) -> Parts:
    """64 places in a table of 4 values; 8 words, each 4 numbers of signs and a factor."""
    words = _words(raw[:, 66:], "<u4")
    factors = np.float32(0.5) + (words >> 28).astype(np.float32)
    q = _signed("IQ3_XXS", raw[:, 2:66], _listed_signs(words))
    return Parts(q, fp16(raw[:, :2]) * factors * np.float32(0.5))


def iq3_s(raw: Bytes) -> Parts:
    """64 places in a table in 9 bits, the highest apart; a bit for each sign."""
    places = raw[:, 2:66] | low_bits_first(raw[:, 66:74]).astype(np.uint16) << 8
    q = _signed("IQ3_S", places, low_bits_first(raw[:, 74:106]))
    factors = (1 + 2 * fields(raw[:, 106:], 1, 4)).astype(np.float32)
    return Parts(q, fp16(raw[:, :2]) * factors)


def iq1_s(raw: Bytes) -> Parts:
    """Eighths: a value of the table and an eighth more or less."""
    words = _words(raw[:, 34:], "<u2")
    high = _spread(words, 4, 3)
    less = (words >> 15).astype(np.uint8).repeat(4, axis=-1)
    factors = (2 * (words >> 12 & 7) + 1).astype(np.float32)
    scales = fp16(raw[:, :2]) * factors / np.float32(8)
    return Parts(_eighths(raw[:, 2:34] | high << 8, less), scales)


def iq1_m(raw: Bytes) -> Parts:
    """As IQ1_S. The factor's bits are the highest four of each word of scales."""
    words, high = _words(raw[:, 48:], "<u2"), fields(raw[:, 32:48], 1, 4)
    parts = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d: Floats = (
        np.bitwise_or.reduce(parts, axis=-1, keepdims=True).view(np.float16).astype(np.float32)
    )
    factors = _spread(words, 4, 3)
    q = _eighths(raw[:, :32] | (high & 7).astype(np.uint16) << 8, high >> np.uint8(3))
    return Parts(q, d * (2 * factors + 1) / np.float32(8))


def _words(raw: Bytes, dtype: str) -> NDArray[Any]:
    return np.ascontiguousarray(raw).view(dtype)


def _spread(words: NDArray[Any], count: int, bits: int) -> NDArray[Any]:
    """`count` numbers of `bits` bits of each word, from the lowest on: [n,words * count]."""
    shifts = (np.arange(count) * bits).astype(words.dtype)
    numbers = (words[..., None] >> shifts) & words.dtype.type((1 << bits) - 1)
    found: NDArray[Any] = numbers.reshape(len(words), -1)
    return found


def _digits(raw: Bytes, count: int, run: int) -> Bytes:
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:count, None]
    moved: Bytes = raw.reshape(len(raw), -1, 1, run) * powers
    return (moved.reshape(len(raw), -1).astype(np.uint16) * 3 >> 8).astype(np.uint8)


def _quarters(d: Bytes, packed: Bytes) -> Floats:
    return fp16(d) * (np.float32(0.5) + fields(packed, 1, 4)) * np.float32(0.25)


def _listed_signs(words: NDArray[Any]) -> Bytes:
    """Of each word four lists of 8 signs, by their numbers of 7 bits."""
    return low_bits_first(_signs()[_spread(words, 4, 7)])


def _signed(kind: str, places: NDArray[Any], signs: Bytes) -> Bytes:
    """Values of the table, where a sign is 1 negative."""
    values = _grid(kind)[places].reshape(len(places), -1)
    negative = signs.reshape(len(places), -1) == 1
    found: Bytes = (_MIDDLE + np.where(negative, -values, values)).astype(np.uint8)
    return found


def _eighths(places: NDArray[Any], less: Bytes) -> Bytes:
    values = 8 * _grid("IQ1_S")[places] + 1 - 2 * less.astype(np.int16)[..., None]
    found: Bytes = (_MIDDLE + values).astype(np.uint8)
    return found.reshape(len(places), -1)


@cache
def _grid(kind: str) -> NDArray[np.int16]:
    """The table of a type: [its values' number, 4 or 8]."""
    from gguf import quants

    of_kind = getattr(quants, kind)
    of_kind.init_grid()
    found: NDArray[np.int16] = of_kind.grid[0, 0].astype(np.int16)
    return found


@cache
def _signs() -> Bytes:
    """Lists of 8 signs by their number, a bit each."""
    from gguf.quants import IQ2_XXS

    return np.frombuffer(IQ2_XXS.ksigns, np.uint8)


@cache
def _iq4() -> Bytes:
    from gguf.quants import IQ4_NL

    return (_MIDDLE + np.array(IQ4_NL.kvalues)).astype(np.uint8)


@cache
def _fp4() -> Bytes:
    values = np.array([*_FP4, *(-value for value in _FP4)])
    return (_MIDDLE + values).astype(np.uint8)


@cache
def _unsigned_e4m3() -> Floats:
    """The values of all bytes, whose highest bit has no meaning; llama.cpp takes 127 as 0."""
    import ml_dtypes

    values = (np.arange(256, dtype=np.uint8) & 127).view(ml_dtypes.float8_e4m3fn)
    found: Floats = np.nan_to_num(values.astype(np.float32), nan=480.0)
    found[127] = 0
    return found
