"""Takes the blocks of GGUF's plain and K types apart: integers, and their scales and minima.

A function takes blocks [n,bytes]. Nothing is rounded: what is multiplied here, the package `gguf`
multiplies too. Integers are shifted so that zero is in the middle of their container.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.weights.forms.integers import (
    Form,
)
from snapexport.exporter.weights.readers.quantization import doubled_e2m1, e8m0

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


def join_bits(low: Bytes, high: Bytes, bits: int) -> Bytes:
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
    q = join_bits(fields(raw[:, 6:], 16, 4), low_bits_first(raw[:, 2:6]), 4)
    return Parts(q + np.uint8(128 - 16), fp16(raw[:, :2]))


def q5_1(raw: Bytes) -> Parts:
    """32 integers as Q5_0 has them, with a minimum."""
    q = join_bits(fields(raw[:, 8:], 16, 4), low_bits_first(raw[:, 4:8]), 4)
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
    q = join_bits(fields(raw[:, 32:96], 32, 2), fields(raw[:, :32], 32, 1), 2)
    factors = join_bits(fields(raw[:, 96:104], 8, 4), fields(raw[:, 104:108], 4, 2), 4)
    return Parts(q + np.uint8(8 - 4), fp16(raw[:, 108:]) * _to_signed(factors))


def q4_k(raw: Bytes) -> Parts:
    """256 integers of 4 bits after the scales and minima of 8 parts."""
    return Parts(fields(raw[:, 16:], 32, 4), *_scales_and_minima(raw))


def q5_k(raw: Bytes) -> Parts:
    """256 integers as Q4_K has them, with the highest bits apart."""
    q = join_bits(fields(raw[:, 48:], 32, 4), fields(raw[:, 16:48], 32, 1), 4)
    return Parts(q, *_scales_and_minima(raw))


def q6_k(raw: Bytes) -> Parts:
    """256 integers of 6 bits, the highest two apart; scales of 16 parts in a byte."""
    q = join_bits(fields(raw[:, :128], 64, 4), fields(raw[:, 128:192], 32, 2), 4)
    factors = np.ascontiguousarray(raw[:, 192:208]).view(np.int8)
    return Parts(q + np.uint8(128 - 32), fp16(raw[:, 208:]) * factors)


def _scales_and_minima(raw: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of 8 parts in 6 bits each: 4 bytes of scales, of minima, and of both."""
    d, least, packed = fp16(raw[:, :2]), fp16(raw[:, 2:4]), raw[:, 4:16]
    scales, minima, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    high_scales = (both & 15) | (scales >> 2) & 0x30
    high_minima = (both >> 4) | (minima >> 2) & 0x30
    scales = np.concatenate([scales & 63, high_scales], axis=-1)
    minima = np.concatenate([minima & 63, high_minima], axis=-1)
    return d * scales, -(least * minima)


def _to_signed(factors: Bytes) -> NDArray[np.int8]:
    """6 bits, of which 32 means 0."""
    return factors.view(np.int8) - np.int8(32)


_MIDDLE = 128
"""The integer for 0 in a container of 8 bits."""


def iq4_nl(raw: Bytes) -> Parts:
    """32 places in a table of 16 values after a scale."""
    return Parts(_iq4()[fields(raw[:, 2:], 16, 4)], fp16(raw[:, :2]))


def iq4_xs(raw: Bytes) -> Parts:
    """256 places in IQ4_NL's table; scales of 8 parts in 6 bits."""
    high = _spread(_words(raw[:, 2:4], "<u2"), 8, 2)
    factors = join_bits(fields(raw[:, 4:8], 1, 4), high.astype(np.uint8), 4)
    scales = fp16(raw[:, :2]) * (factors.view(np.int8) - np.int8(32))
    return Parts(_iq4()[fields(raw[:, 8:], 16, 4)], scales)


def mxfp4(raw: Bytes) -> Parts:
    """Half a power of two for each block, as the values are doubled."""
    scales = e8m0(raw[:, :1]) * np.float32(0.5)
    return Parts(doubled_e2m1()[fields(raw[:, 1:], 16, 4)], scales)


def nvfp4(raw: Bytes) -> Parts:
    """64 floats of 4 bits after the scales of 4 parts, each a float of 8 bits."""
    q = doubled_e2m1()[fields(raw[:, 4:], 8, 4)]
    return Parts(q, _unsigned_e4m3()[raw[:, :4]] * np.float32(0.5))


def tq1_0(raw: Bytes) -> Parts:
    """5 digits of base 3 in a byte, the first one the highest."""
    parts = (raw[:, :32], 5, 32), (raw[:, 32:48], 5, 16), (raw[:, 48:52], 4, 4)
    q = np.concatenate([_digits(*one) for one in parts], axis=-1)
    return Parts(q + np.uint8(8 - 1), fp16(raw[:, 52:]))


def tq2_0(raw: Bytes) -> Parts:
    """256 integers of 2 bits, of which 1 means 0."""
    return Parts(fields(raw[:, :64], 32, 2) + np.uint8(8 - 1), fp16(raw[:, 64:]))


def iq2_xxs(raw: Bytes) -> Parts:
    """8 parts of 8 bytes: 4 places in a table, then 4 numbers of signs and a factor."""
    pairs = _words(raw[:, 2:], "<u4").reshape(len(raw), -1, 2)
    places = np.ascontiguousarray(pairs[..., 0]).view(np.uint8).reshape(len(raw), -1)
    factors = np.float32(0.5) + (pairs[..., 1] >> 28).astype(np.float32)
    q = _with_signs("IQ2_XXS", places, _listed_signs(pairs[..., 1]))
    return Parts(q, fp16(raw[:, :2]) * factors * np.float32(0.25))


def iq2_xs(raw: Bytes) -> Parts:
    """32 words, each a place in a table and a number of signs; 16 factors in 4 bits."""
    words = _words(raw[:, 2:66], "<u2")
    q = _with_signs("IQ2_XS", words & 511, low_bits_first(_signs()[words >> 9]))
    return Parts(q, _quarters(raw[:, :2], raw[:, 66:]))


def iq2_s(raw: Bytes) -> Parts:
    """Places in a table in 10 bits, the highest two apart; a bit for each sign."""
    places = raw[:, 2:34] | fields(raw[:, 66:74], 1, 2).astype(np.uint16) << 8
    q = _with_signs("IQ2_S", places, low_bits_first(raw[:, 34:66]))
    return Parts(q, _quarters(raw[:, :2], raw[:, 74:]))


def iq3_xxs(raw: Bytes) -> Parts:
    """64 places in a table of 4 values; 8 words, each 4 numbers of signs and a factor."""
    words = _words(raw[:, 66:], "<u4")
    factors = np.float32(0.5) + (words >> 28).astype(np.float32)
    q = _with_signs("IQ3_XXS", raw[:, 2:66], _listed_signs(words))
    return Parts(q, fp16(raw[:, :2]) * factors * np.float32(0.5))


def iq3_s(raw: Bytes) -> Parts:
    """64 places in a table in 9 bits, the highest apart; a bit for each sign."""
    places = raw[:, 2:66] | low_bits_first(raw[:, 66:74]).astype(np.uint16) << 8
    q = _with_signs("IQ3_S", places, low_bits_first(raw[:, 74:106]))
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
    """Eighths as IQ1_S has them. The factor's bits are the highest four of each word of scales."""
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
    """Four lists of 8 signs for each word, by their numbers of 7 bits."""
    return low_bits_first(_signs()[_spread(words, 4, 7)])


def _with_signs(kind: str, places: NDArray[Any], signs: Bytes) -> Bytes:
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
def _unsigned_e4m3() -> Floats:
    """The values of all bytes, whose highest bit has no meaning; llama.cpp takes 127 as 0."""
    import ml_dtypes

    values = (np.arange(256, dtype=np.uint8) & 127).view(ml_dtypes.float8_e4m3fn)
    found: Floats = np.nan_to_num(values.astype(np.float32), nan=480.0)
    found[127] = 0
    return found


@dataclass(frozen=True)
class Kind:
    """A type of tensors. parts: takes blocks of bytes apart."""

    form: Form
    parts: Callable[[Bytes], Parts]


_MIDDLE_4 = {block: Form(4, block, 8) for block in (16, 32, 128, 256)}
_MIDDLE_8 = {32: Form(8, 32, 128), 16: Form(8, 16, 128)}
_FROM_0 = {4: Form(4, 32, 0, minima=True), 5: Form(8, 32, 112, minima=True)}
"""Forms by the bits of integers from 0 on, which the zero moves to the middle of their container:
sums of products would cancel otherwise, and the error of activations in 8 bits would not."""
KINDS: Mapping[str, Kind] = {
    "Q1_0": Kind(_MIDDLE_4[128], q1_0),
    "Q4_0": Kind(_MIDDLE_4[32], q4_0),
    "Q4_1": Kind(_FROM_0[4], q4_1),
    "Q5_0": Kind(_MIDDLE_8[32], q5_0),
    "Q5_1": Kind(_FROM_0[5], q5_1),
    "Q8_0": Kind(_MIDDLE_8[32], q8_0),
    "Q2_K": Kind(Form(4, 16, 6, minima=True), q2_k),
    "Q3_K": Kind(_MIDDLE_4[16], q3_k),
    "Q4_K": Kind(_FROM_0[4], q4_k),
    "Q5_K": Kind(_FROM_0[5], q5_k),
    "Q6_K": Kind(_MIDDLE_8[16], q6_k),
    "TQ1_0": Kind(_MIDDLE_4[256], tq1_0),
    "TQ2_0": Kind(_MIDDLE_4[256], tq2_0),
    "MXFP4": Kind(_MIDDLE_8[32], mxfp4),
    "NVFP4": Kind(_MIDDLE_8[16], nvfp4),
    "IQ1_S": Kind(_MIDDLE_8[32], iq1_s),
    "IQ1_M": Kind(_MIDDLE_8[16], iq1_m),
    "IQ2_XXS": Kind(_MIDDLE_8[32], iq2_xxs),
    "IQ2_XS": Kind(_MIDDLE_8[16], iq2_xs),
    "IQ2_S": Kind(_MIDDLE_8[16], iq2_s),
    "IQ3_XXS": Kind(_MIDDLE_8[32], iq3_xxs),
    "IQ3_S": Kind(_MIDDLE_8[32], iq3_s),
    "IQ4_NL": Kind(_MIDDLE_8[32], iq4_nl),
    "IQ4_XS": Kind(_MIDDLE_8[32], iq4_xs),
}
"""Types by ggml's names. Dequantized, each equals what the package `gguf` makes of it, bit for bit.

The package does not dequantize Q1_0.
"""
