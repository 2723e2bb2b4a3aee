"""Sizes of attention, near and beyond the limits of the fused kernel."""

from collections.abc import Iterator
from typing import Any

import onnx

from tests.rtx.small.attention import attention
from tests.rtx.small.making import BOOL, F32

ROW_HEADS = (8, 16, 40, 64, 72, 80, 96, 128, 192, 256, 512)
CHUNK_HEADS = (7, 8, 20, 40, 256, 512)


def one_row(head_dim: int, slots: int = 256, **options: Any) -> onnx.ModelProto:
    """A decode step of two batch slots, under a mask."""
    mask = ("m", BOOL, [2, 1, 1, slots])
    return attention((2, 4, 1, head_dim), (2, 2, slots, head_dim), mask=mask, **options)


def chunk(head_dim: int, **options: Any) -> onnx.ModelProto:
    """128 rows over 512 keys, under a mask."""
    mask = ("m", BOOL, [1, 1, 128, 512])
    return attention((1, 4, 128, head_dim), (1, 2, 512, head_dim), mask=mask, **options)


def graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    yield "one row in fp32", one_row(64, dtype=F32)
    yield "one row over 24,512 keys", one_row(64, 24512)
    yield "one row over 24,576 keys", one_row(64, 24576)
    for head_dim in ROW_HEADS:
        yield f"one row, heads of {head_dim}", one_row(head_dim)
    yield "a chunk in fp32", chunk(64, dtype=F32)
    for head_dim in CHUNK_HEADS:
        yield f"a chunk, heads of {head_dim}", chunk(head_dim)
    yield "a chunk, heads of 512, decomposable", chunk(512, TRT_decomposable=1)
    yield "one row over 24,576 keys, decomposable", one_row(64, 24576, TRT_decomposable=1)
