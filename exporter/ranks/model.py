"""Makes transformers' model one rank's: smaller weights, and markers where ranks have to meet.

Each layer has two sums over the ranks, of attention's output and of its MLP or experts. The
embedding's columns and the head's logits are joined. Norms and routers see the sums, so all ranks
compute them alike.
"""

import functools
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from torch import Tensor, nn
from torch.onnx import ops as onnx_ops

from snapexport.exporter.ranks.axes import axis_of, name_of_whole
from snapexport.graphs.markers import ALL_GATHER, ALL_REDUCE, TRACE_DOMAIN

Forward = Callable[..., Tensor]

_UP_PROJECTIONS = "kv_b_proj"


def cut_model(model: Any, ranks: int, *, every_head_attends: bool = False) -> None:
    """Change a model without weights. One rank: nothing changes.

    every_head_attends: of latents, in each rank, which so has the up-projections of all heads.
    """
    if ranks == 1:
        return
    for path, module in model.named_modules():
        if every_head_attends and path.endswith(f".{_UP_PROJECTIONS}"):
            continue
        for name, weight in list(module.named_parameters(recurse=False)):
            _cut(module, name, weight, axis_of(f"{path}.{name}"), ranks)
        if hasattr(module, "num_heads"):  # latent attention reads it; others divide by head_dim
            module.num_heads //= ranks
    for layer in model.model.layers:
        layer.self_attn.o_proj.forward = functools.partial(
            _reduced_product, layer.self_attn.o_proj, ranks
        )
        layer.mlp.forward = functools.partial(_reduced, layer.mlp.forward, ranks)
    for module in (model.model.embed_tokens, model.lm_head):
        module.forward = functools.partial(_gathered, module.forward, ranks)


def rename_whole(traced: ir.Model) -> None:
    """Give up-projections of all heads a name of their own: prefill has a rank's part of them."""
    for name, value in list(traced.graph.initializers.items()):
        if f".{_UP_PROJECTIONS}." in name:
            value.name = name_of_whole(name)


def _cut(module: nn.Module, name: str, weight: Tensor, axis: int | None, ranks: int) -> None:
    if axis is not None:
        shape = [size // ranks if one == axis else size for one, size in enumerate(weight.shape)]
        setattr(module, name, nn.Parameter(weight.new_empty(shape), requires_grad=False))


def _reduced_product(module: Any, ranks: int, states: Tensor) -> Tensor:
    """A product whose bias is added once, to the sum of all ranks."""
    total = _marked(ALL_REDUCE, nn.functional.linear(states, module.weight), ranks)
    return total if module.bias is None else total + module.bias


def _reduced(forward: Forward, ranks: int, states: Tensor) -> Tensor:
    return _marked(ALL_REDUCE, forward(states), ranks)


def _gathered(forward: Forward, ranks: int, inputs: Tensor) -> Tensor:
    part = forward(inputs)
    return _marked(ALL_GATHER, part, ranks, ranks * part.shape[-1])


def _marked(marker: str, states: Tensor, ranks: int, width: int | None = None) -> Tensor:
    return onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{marker}",
        (states,),
        {"ranks": ranks, "axis": len(states.shape) - 1},
        dtype=states.dtype,
        shape=(*states.shape[:-1], width or states.shape[-1]),
        version=1,
    )
