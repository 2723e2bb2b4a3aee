"""Adds tensors to a checkpoint that graphs read and no file holds as such: experts and latents.

    gate_up [E,2I,H]    row 2i is row i of the expert's gate_proj, row 2i + 1 of its up_proj
    down    [E,H,I]
    up      [E,I,H]     in the place of gate_up, of experts without a gate

One layout serves all targets: ONNX Runtime's MoE takes no other (swiglu_fusion = 1). A checkpoint
has a matrix for each expert and projection, or transformers' stacks: gate_up_proj [E,2I,H] with the
gates' rows first, and down_proj; or in the other ways that an `ExpertForm` says.

A checkpoint stores W_UK and W_UV of all heads in one matrix, kv_b_proj. A build stores each as a
weight of its own, since a graph would have to copy them apart in each run.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from snapexport.exporter.model import Decoder, ExpertForm
from snapexport.exporter.model.markers import DOWN, GATE_UP, WEIGHTS
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.arranged import (
    InTurn,
    Rows,
    RowsInTurn,
    RowsOfHeads,
    Stack,
    swap_axes,
)
from snapexport.exporter.weights.tensor_file import Tensor as StoredTensor
from snapexport.files.safetensors import TensorSpan

_STORED, _KEY_UP, _VALUE_UP = "kv_b_proj.weight", "kv_b_proj.key", "kv_b_proj.value"


def with_derived(checkpoint: Checkpoint, decoder: Decoder) -> Checkpoint:
    """The checkpoint with the tensors that the decoder's traces need."""
    tensors = dict(checkpoint.tensors)
    if decoder.latent:
        tensors |= split_up_projections(checkpoint.tensors, decoder.config)
    if decoder.expert_form:
        tensors |= stacked_experts(checkpoint.tensors, decoder.expert_form)
    return replace(checkpoint, tensors=tensors)


def originals(stored: dict[str, Tensor], decoder: Decoder) -> dict[str, Tensor]:
    """A build's tensors, with those that the derived ones were made of."""
    found = dict(stored)
    if decoder.latent:
        found |= joined_up_projections(stored)
    if decoder.expert_form:
        found |= unstacked_experts(stored, decoder.expert_form)
    return found


_APART = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
"""A stack's name -> the matrices that each expert has of it."""
_STACK = re.compile(r"(?P<stem>.*\.experts)\.(?P<name>(?:gate_)?up_proj|down_proj)")
_BIAS = re.compile(r"(?P<stem>.*\.experts)\.(?P<name>gate_up_proj_bias|down_proj_bias)")
_FIRST = re.compile(r"(?P<stem>.*\.experts)\.0\.(?P<name>gate_proj|down_proj)\.weight")


def stored_shapes(
    parameters: Mapping[str, tuple[int, ...]], tensors: Mapping[str, StoredTensor]
) -> dict[str, tuple[int, ...]]:
    """The names and shapes by which a checkpoint should have transformers' parameters.

    Stacks that it doesn't have as such are the matrices of their experts.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parameters.items():
        found = _STACK.fullmatch(name)
        if name in tensors or not found or len(shape) != 3:
            shapes[name] = shape
            continue
        experts, rows, columns = shape
        parts = _APART[found["name"]]
        for expert in range(experts):
            names = (f"{found['stem']}.{expert}.{part}.weight" for part in parts)
            shapes |= dict.fromkeys(names, (rows // len(parts), columns))
    return shapes


def stacked_experts(
    tensors: Mapping[str, StoredTensor], form: ExpertForm
) -> dict[str, StoredTensor]:
    """The stacks of every layer with experts, by the names of the trace's weights."""
    stacks: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if found := _FIRST.fullmatch(name):
            whole = GATE_UP if found["name"] == "gate_proj" else DOWN
            stacks[f"{found['stem']}.{whole}"] = Stack(
                tuple(_of_experts(found["stem"], whole, tensors))
            )
        elif found := _STACK.fullmatch(name):
            whole = WEIGHTS[found["name"]]
            rows = swap_axes(tensor) if form.transposed else tensor
            stacks[f"{found['stem']}.{whole}"] = rows if form.in_turn else _in_turn(rows, whole)
        elif found := _BIAS.fullmatch(name):
            stacks[f"{found['stem']}.{WEIGHTS[found['name']]}"] = tensor
    return stacks


def _in_turn(stack: StoredTensor, whole: str) -> StoredTensor:
    """A stack of transformers' as the graphs read it."""
    match stack:
        case TensorSpan():
            return Stack(tuple(_of_stack(stack, whole)))
        case _ if whole != GATE_UP:
            return stack
        case Stack(parts) if all(isinstance(part, Rows) for part in parts):
            return Stack(tuple(InTurn(part.parts) for part in parts if isinstance(part, Rows)))
    return RowsInTurn(stack)


def _of_experts(
    stem: str, whole: str, tensors: Mapping[str, StoredTensor]
) -> Iterator[StoredTensor]:
    """Each expert's matrix of a stack."""
    for expert in count():
        names = (f"{stem}.{expert}.{part}.weight" for part in ("gate_proj", "up_proj", "down_proj"))
        found = [tensors[name] for name in names if name in tensors]
        if len(found) < 3:
            return
        gate, up, down = found
        yield InTurn((gate, up)) if whole == GATE_UP else down


def _of_stack(stack: TensorSpan, whole: str) -> Iterator[StoredTensor]:
    experts, rows, _ = stack.shape
    for first in range(0, experts * rows, rows):
        if whole != GATE_UP:
            yield _rows(stack, first, rows)
        else:
            half = rows // 2
            yield InTurn((_rows(stack, first, half), _rows(stack, first + half, half)))


def _rows(stack: TensorSpan, first: int, rows: int) -> TensorSpan:
    """Some rows of a tensor, all of whose axes but the last count rows."""
    row = stack.nbytes // prod(stack.shape[:-1])
    offset, shape = stack.offset + first * row, (rows, stack.shape[-1])
    return replace(stack, offset=offset, nbytes=rows * row, shape=shape)


def unstacked_experts(stored: Mapping[str, Tensor], form: ExpertForm) -> dict[str, Tensor]:
    """transformers' stacks of a build's weights."""
    stacks: dict[str, Tensor] = {}
    for name, weight in stored.items():
        for theirs, ours in WEIGHTS.items():
            if name.endswith(f".experts.{ours}"):
                original = weight
                if ours == GATE_UP and not form.in_turn:
                    original = torch.cat((weight[:, 0::2], weight[:, 1::2]), dim=1)
                if form.transposed and weight.ndim == 3:
                    original = original.mT
                stacks[name.removesuffix(ours) + theirs] = original
    return stacks


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
