"""Stacks the weights of a layer's experts, as the graphs read them.

    gate_up [E,2I,H]    row 2i is row i of the expert's gate_proj, row 2i + 1 of its up_proj
    down    [E,H,I]
    up      [E,I,H]     in the place of gate_up, of experts without a gate

One layout serves all targets: ONNX Runtime's MoE takes no other (swiglu_fusion = 1). A checkpoint
has a matrix for each expert and projection, or transformers' stacks: gate_up_proj [E,2I,H] with the
gates' rows first, and down_proj; or in the other ways that an `ExpertForm` tells.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from math import prod

import torch

from snapexport.exporter.architectures import ExpertForm
from snapexport.exporter.derived.stack import InTurn, Rows, RowsInTurn, Stack
from snapexport.exporter.moved_weights import swapped
from snapexport.exporter.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

GATE_UP, DOWN = "gate_up", "down"
WEIGHTS = {
    "gate_up_proj": GATE_UP,
    "up_proj": "up",
    "down_proj": DOWN,
    "gate_up_proj_bias": "gate_up_bias",
    "down_proj_bias": "down_bias",
}
"""transformers' names of a module's weights -> the marker's, in the order of its inputs."""

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
    parameters: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]
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


def stacked_experts(tensors: Mapping[str, Tensor], form: ExpertForm) -> dict[str, Tensor]:
    """The stacks of every layer with experts, by the names of the trace's weights."""
    stacks: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if found := _FIRST.fullmatch(name):
            whole = GATE_UP if found["name"] == "gate_proj" else DOWN
            stacks[f"{found['stem']}.{whole}"] = Stack(
                tuple(_of_experts(found["stem"], whole, tensors))
            )
        elif found := _STACK.fullmatch(name):
            whole = WEIGHTS[found["name"]]
            lies = swapped(tensor) if form.transposed else tensor
            stacks[f"{found['stem']}.{whole}"] = lies if form.in_turn else _in_turn(lies, whole)
        elif found := _BIAS.fullmatch(name):
            stacks[f"{found['stem']}.{WEIGHTS[found['name']]}"] = tensor
    return stacks


def _in_turn(stack: Tensor, whole: str) -> Tensor:
    """A stack of transformers' as the graphs read it."""
    match stack:
        case TensorSpan():
            return Stack(tuple(_of_stack(stack, whole)))
        case _ if whole != GATE_UP:
            return stack
        case Stack(parts) if all(isinstance(part, Rows) for part in parts):
            return Stack(tuple(InTurn(part.parts) for part in parts if isinstance(part, Rows)))
    return RowsInTurn(stack)


def _of_experts(stem: str, whole: str, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Each expert's matrix of a stack."""
    for expert in count():
        names = (f"{stem}.{expert}.{part}.weight" for part in ("gate_proj", "up_proj", "down_proj"))
        found = [tensors[name] for name in names if name in tensors]
        if len(found) < 3:
            return
        gate, up, down = found
        yield InTurn((gate, up)) if whole == GATE_UP else down


def _of_stack(stack: TensorSpan, whole: str) -> Iterator[Tensor]:
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


def unstacked_experts(
    stored: Mapping[str, torch.Tensor], form: ExpertForm
) -> dict[str, torch.Tensor]:
    """transformers' stacks of a build's weights."""
    stacks: dict[str, torch.Tensor] = {}
    for name, weight in stored.items():
        for theirs, ours in WEIGHTS.items():
            if name.endswith(f".experts.{ours}"):
                lies = weight
                if ours == GATE_UP and not form.in_turn:
                    lies = torch.cat((weight[:, 0::2], weight[:, 1::2]), dim=1)
                if form.transposed and weight.ndim == 3:
                    lies = lies.mT
                stacks[name.removesuffix(ours) + theirs] = lies
    return stacks
