"""Reads a build's weights back as numbers: integers, floats of 4 bits, and fp8."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from snapexport.exporter.weights.forms.fp8 import ROW_SCALES
from snapexport.exporter.weights.forms.parts import (
    FACTOR,
    FP4,
    MINIMA,
    ORDER,
    PACKED,
    SCALES,
    SIGNED,
    TRANSPOSED,
    ZEROS,
)
from snapexport.exporter.weights.readers import read_quantization

_MIDDLES = {4: 0x88, 8: 0x80}
"""The middle of each integer of a byte, which signed ones lack."""
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantized(
    stored: Mapping[str, Tensor], config: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Tensor]:
    """The tensors of a build in fp32, its weights in the place of their parts.

    config: of the checkpoint. Padding at the end of rows stays. Weights that were transposed lie as
    they did.
    """
    found = dict(stored)
    for name in stored:
        if name.endswith(FP4):
            stem = name.removesuffix(FP4)
            found[stem] = _floats(found, stem)
        for bits, end in (*PACKED.items(), *SIGNED.items()):
            if name.endswith(end):
                stem, packed = name.removesuffix(end), found.pop(name).view(torch.uint8)
                if end == SIGNED[bits]:
                    packed = packed ^ _MIDDLES[bits]
                weight = _weight(found, stem, bits, packed)
                turned = stem.endswith(TRANSPOSED)
                found[stem.removesuffix(TRANSPOSED)] = weight.mT if turned else weight
    return _without_fp8(found, config)


def _weight(stored: dict[str, Tensor], stem: str, bits: int, packed: Tensor) -> Tensor:
    """A weight [...,N,K], whose parts are taken out of `stored`."""
    scales = stored.pop(stem + SCALES).float()
    *leading, blocks = scales.shape
    integers = _integers(packed.reshape(*leading, -1), bits).reshape(*leading, blocks, -1)
    zeros, minima, order = (stored.pop(stem + end, None) for end in (ZEROS, MINIMA, ORDER))
    if zeros is None:
        values = integers - (1 << bits - 1)
    else:
        values = integers - _integers(zeros, bits)[..., :blocks, None]
    values *= scales[..., None]
    if minima is not None:
        values += minima.float()[..., None]
    flat = values.reshape(*leading, -1)
    return flat if order is None else flat[..., : len(order)][..., torch.argsort(order)]


def _floats(stored: dict[str, Tensor], stem: str) -> Tensor:
    """A weight [N,K] of floats of 4 bits."""
    values = _E2M1[_integers(stored.pop(stem + FP4), 4).long()]
    scales = stored.pop(stem + SCALES).float() * stored.pop(stem + FACTOR)
    in_blocks = values.reshape(*scales.shape, -1) * scales[..., None]
    return in_blocks.flatten(-2)


def _integers(packed: Tensor, bits: int) -> Tensor:
    """Rows of bytes as rows of integers, in fp32."""
    if bits == 4:
        packed = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return packed.float()


def _without_fp8(stored: Mapping[str, Tensor], config: Mapping[str, object]) -> dict[str, Tensor]:
    found = read_quantization(config)
    width = found.block[1] if found else 0
    whole = {name: one.float() for name, one in stored.items() if not name.endswith(ROW_SCALES)}
    for name, scales in stored.items():
        if name.endswith(ROW_SCALES):
            weight = whole[name.removesuffix(ROW_SCALES)]
            if scales.ndim < weight.ndim:
                weight *= scales[:, None]
                continue
            columns, count = weight.shape[-1], scales.shape[-1]
            fits = width and -(-columns // width) == count
            of_scale = width if fits else _width(columns, count)
            weight *= scales.repeat_interleave(of_scale, -1)[..., :columns]
    return whole


def _width(columns: int, count: int) -> int:
    """The power of two of which a row has so many blocks.

    ModelOpt's config lies beside the model's, and modules may differ in their blocks.
    """
    return next(width for width in (1 << n for n in range(32)) if -(-columns // width) == count)
