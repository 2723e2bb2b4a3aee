"""Marks multi-head latent attention (MLA) in a skeleton, and gives it the weights that it reads.

A checkpoint stores W_UK and W_UV of all heads in one matrix, kv_b_proj. A build stores each as a
weight of its own (`split_up_projections`), since a graph would have to copy them apart in each run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.onnx import ops as onnx_ops
from transformers import PretrainedConfig

from snapexport.exporter.tensor_file import BLOCK, Rearranged, blocks
from snapexport.exporter.tensor_file import Tensor as StoredTensor
from snapexport.graphs.markers import LATENT_ATTENTION, TRACE_DOMAIN

_STORED, _KEY_UP, _VALUE_UP = "kv_b_proj.weight", "kv_b_proj.key", "kv_b_proj.value"


def mark_latent_attention(model: Any) -> None:
    """Let every attention module hand attention its latents in the place of keys and values."""
    for module in model.modules():
        if is_latent(module):
            config, rank = module.config, module.config.kv_lora_rank
            heads, stored = module.num_heads, module.kv_b_proj.weight
            del module.kv_b_proj.weight
            shapes = {"key": (config.qk_nope_head_dim, rank), "value": (rank, config.v_head_dim)}
            for name, shape in shapes.items():
                part = nn.Parameter(stored.new_empty(heads, *shape), requires_grad=False)
                module.kv_b_proj.register_parameter(name, part)
            module.expand_kv = lambda latents, rotated: (latents, rotated)


def is_latent(module: Any) -> bool:
    """Whether an attention module projects latents up to keys and values."""
    return hasattr(module, "kv_b_proj")


def latent_marker(
    module: Any, query: Tensor, c_kv: Tensor, k_rope: Tensor, place: int, scale: float
) -> Tensor:
    """Queries [B,H,C,n+d] and latents [B,1,C,r] and [B,1,C,d] -> [B,C,H,v]."""
    up = module.kv_b_proj
    marked: Tensor = onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{LATENT_ATTENTION}",
        (query, c_kv, k_rope, up.key, up.value),
        {"layer": place, "scale": scale},
        dtype=query.dtype,
        shape=(query.shape[0], query.shape[2], query.shape[1], up.value.shape[2]),
        version=1,
    )
    return marked


@dataclass(frozen=True)
class RowsOfHeads(Rearranged):
    """Some rows of every head of a stored matrix [H*n,K]: a tensor [H,count,K].

    transposed: [H,K,count] instead.
    """

    stored: StoredTensor
    heads: int
    first: int
    count: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        columns = self.stored.shape[1]
        one = (columns, self.count) if self.transposed else (self.count, columns)
        return self.heads, *one

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat; a block holds whole heads."""
        rows, columns = self.stored.shape[0] // self.heads, self.stored.shape[1]
        for block in blocks(self.stored, rows * columns, most):
            parts = block.reshape(-1, rows, columns)[:, self.first : self.first + self.count]
            yield (parts.swapaxes(1, 2) if self.transposed else parts).reshape(-1)


def split_up_projections(
    tensors: Mapping[str, StoredTensor], config: PretrainedConfig
) -> dict[str, StoredTensor]:
    """W_UK [H,n,r] and W_UV^T [H,r,v] of each layer, by the names of the trace's weights."""
    sizes: Any = config
    heads: int = sizes.num_attention_heads
    nope, value = sizes.qk_nope_head_dim, sizes.v_head_dim
    split: dict[str, StoredTensor] = {}
    for name, stored in tensors.items():
        if name.endswith(_STORED):
            stem = name.removesuffix(_STORED)
            split[stem + _KEY_UP] = RowsOfHeads(stored, heads, 0, nope)
            split[stem + _VALUE_UP] = RowsOfHeads(stored, heads, nope, value, transposed=True)
    return split


def joined_up_projections(split: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """kv_b_proj of each layer, [H*(n+v),r], of the two weights that a build holds."""
    joined: dict[str, Tensor] = {}
    for name, keys in split.items():
        if name.endswith(_KEY_UP):
            stem = name.removesuffix(_KEY_UP)
            values = split[stem + _VALUE_UP].transpose(1, 2)
            joined[stem + _STORED] = torch.cat((keys, values), dim=1).flatten(0, 1)
    return joined
