"""Reads a rank's part of each weight from the checkpoint.

Rows lie together, so they are a span of the file, by offset. Columns are read row by row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.derived.stack import InTurn, Stack
from snapexport.exporter.latent_attention import RowsOfHeads
from snapexport.exporter.ranks.axes import axis_of
from snapexport.exporter.tensor_file import (
    BLOCK,
    NUMPY_DTYPE,
    Rearranged,
    Tensor,
    blocks,
    hole,
    is_hole,
)
from snapexport.files.safetensors import TensorSpan


@dataclass(frozen=True)
class Share:
    """The `rank`-th of `ranks` equal parts."""

    rank: int
    ranks: int


@dataclass(frozen=True)
class Columns(Rearranged):
    """A part of a tensor [n,...] along an axis that is not the first."""

    axis: int
    share: Share

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.stored.shape)
        shape[self.axis] //= self.share.ranks
        return tuple(shape)

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        ranks, row = self.share.ranks, prod(self.stored.shape[self.axis :])
        assert row // ranks % multiple == 0, (self.shape, multiple)
        for block in blocks(self.stored, row, most):
            if is_hole(block):
                yield hole(block.size // ranks, NUMPY_DTYPE[self.dtype])
            else:
                yield block.reshape(-1, ranks, row // ranks)[:, self.share.rank].reshape(-1)


def cut(tensor: Tensor, axis: int, share: Share) -> Tensor:
    """A rank's part of a tensor along an axis."""
    match tensor:
        case TensorSpan() if axis == 0:
            return _rows(tensor, share)
        case Stack() if axis > 0:
            return Stack(tuple(cut(part, axis - 1, share) for part in tensor.parts))
        case InTurn() if axis == 0:
            return InTurn(tuple(cut(part, 0, share) for part in tensor.parts))
        case RowsOfHeads() if axis == 0:
            heads = tensor.heads // share.ranks
            return replace(tensor, stored=cut(tensor.stored, 0, share), heads=heads)
    assert axis > 0, tensor
    return Columns(tensor, axis, share)


def _rows(span: TensorSpan, share: Share) -> TensorSpan:
    count, *row = span.shape
    nbytes = span.nbytes // share.ranks
    shape = (count // share.ranks, *row)
    return replace(span, offset=span.offset + share.rank * nbytes, nbytes=nbytes, shape=shape)


def of_rank(
    checkpoint: Checkpoint, sources: Mapping[str, str], rank: int, ranks: int
) -> Checkpoint:
    """A rank's checkpoint, by the names of the trace's weights.

    sources: {weight: tensor of the checkpoint}. Two weights may be cut of one tensor, each along
    its own axis: a head that is tied to the embedding.
    """
    share, tensors = Share(rank, ranks), dict[str, Tensor]()
    for name, source in sources.items():
        axis, whole = axis_of(name), checkpoint.tensors[source]
        tensors[name] = whole if axis is None else cut(whole, axis, share)
    return replace(checkpoint, tensors=tensors)
