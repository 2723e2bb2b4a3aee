"""Calls the emulated launchers on torch tensors. All outputs are poisoned first."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from snapexport.plugins.binding import (
    GatherProblem,
    GatherTensors,
    Launchers,
    SelectProblem,
    SelectTensors,
)

POISON = -7_777_777
GUARD = 64
"""Elements behind each output that no kernel may write."""


def name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class Emulated:
    def __init__(self, library: Path) -> None:
        self.launchers = Launchers(library)

    def select(self, p: SelectProblem, query: Tensor, key: Tensor, length: int) -> Tensor:
        """Kept positions int64 [Hkv,K]."""
        size = p.kv_heads * p.K
        out = torch.full((size + GUARD,), POISON)
        prompt_length = torch.tensor([length])
        bytes_ = self.launchers.workspace_bytes(p, name(query))
        workspace = torch.full((bytes_ + 256,), 0xFF, dtype=torch.uint8)
        aligned = -workspace.data_ptr() % 256
        tensors = SelectTensors(
            query.data_ptr(), key.data_ptr(), prompt_length.data_ptr(), out.data_ptr()
        )
        self.launchers.select(p, name(query), tensors, workspace.data_ptr() + aligned)
        assert bool((out[size:] == POISON).all())
        assert bool((workspace[aligned + bytes_ :] == 0xFF).all())
        return out[:size].reshape(p.kv_heads, p.K)

    def gather(
        self, p: GatherProblem, key: Tensor, value: Tensor, positions: Tensor, length: int
    ) -> list[Tensor]:
        """The compressed keys and values [Hkv,S,D]."""
        slots = p.sink + p.recent + p.spare + p.K
        size = p.kv_heads * slots * p.head_dim
        outs = [torch.full((size + GUARD,), 777.0, dtype=key.dtype) for _ in range(2)]
        prompt_length = torch.tensor([length])
        inputs = (key, value, prompt_length, positions, *outs)
        tensors = GatherTensors(*(tensor.data_ptr() for tensor in inputs))
        self.launchers.gather(p, name(key), tensors)
        assert all(bool((out[size:] == 777).all()) for out in outs)
        return [out[:size].reshape(p.kv_heads, slots, p.head_dim) for out in outs]


@contextmanager
def late(warp: int) -> Iterator[None]:
    """Let the emulator run one of a block's 8 warps only where no other can run."""
    os.environ["SNAPEXPORT_EMULATOR_LATE"] = str(warp)
    try:
        yield
    finally:
        del os.environ["SNAPEXPORT_EMULATOR_LATE"]


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).contiguous()
