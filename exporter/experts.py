"""Marks a mixture of experts (MoE) in a skeleton.

transformers' modules of experts become markers. Its routers are traced as they are, so that each
architecture's choice and weights are right by construction: a softmax over all or over the chosen,
a sigmoid with a bias and groups.

transformers holds the gates' rows before the ups' rows, a build holds them in turn
(`derived/experts.py`): so the marker's weights have names of their own.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.onnx import ops as onnx_ops

from snapexport.exporter.architectures import ExpertForm
from snapexport.exporter.derived.experts import WEIGHTS
from snapexport.graphs.markers import EXPERTS, TRACE_DOMAIN


def mark_experts(model: nn.Module, form: ExpertForm) -> None:
    """Replace the forward of every module of experts, which all have this form."""
    for module in model.modules():
        for part in module.children():
            if is_experts(part):
                _rename_weights(part, form.transposed)
                part.forward = functools.partial(_forward, part, form)
                if form.scaled_inputs:
                    module.forward = functools.partial(block_of_scaled_inputs, module)


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the weights of a layer's experts."""
    return type(module).__name__.endswith("Experts")


def sizes_of_expert(module: Any, transposed: bool) -> tuple[int, int]:
    """The size of what an expert reads, and its width, by transformers' stacks."""
    down = module.down_proj.shape
    hidden, width = (down[2], down[1]) if transposed else down[1:]
    return int(hidden), int(width)


def block_of_scaled_inputs(block: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """A block whose experts read states times their weights: each chosen expert is a choice of one.

    transformers' own forward lets every expert read every token, nearly all of them times zero.
    """
    states = hidden_states.reshape(-1, hidden_states.shape[-1])
    scores, logits = block.router(states)
    weights, chosen = torch.topk(scores, block.top_k, dim=1)
    total = block.shared_expert(states)
    for weight, expert in zip(torch.split(weights, 1, 1), torch.split(chosen, 1, 1), strict=True):
        total = total + block.experts(states * weight, expert, torch.ones_like(weight))
    return total, logits


def _rename_weights(module: Any, transposed: bool) -> None:
    """Give a module the weights of the marker, which lie as [E,rows,columns]."""
    for stored, name in WEIGHTS.items():
        if (weight := getattr(module, stored, None)) is not None:
            delattr(module, stored)
            lies = weight.mT if transposed and weight.ndim == 3 else weight
            empty = nn.Parameter(lies.new_empty(lies.shape), requires_grad=False)
            module.register_parameter(name, empty)


def _forward(
    module: Any,
    form: ExpertForm,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """Hidden states [N,H], the experts of each [N,k] and their weights [N,k] -> [N,H]."""
    weights = [getattr(module, name, None) for name in WEIGHTS.values()]
    routing = hidden_states, top_k_index, top_k_weights.to(hidden_states.dtype)
    return onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{EXPERTS}",
        (*routing, *(weight for weight in weights if weight is not None)),
        {
            "alpha": form.alpha,
            "beta": form.beta,
            "limit": form.limit,
            "activation": form.activation,
            "gated": int(form.gated),
        },
        dtype=hidden_states.dtype,
        shape=hidden_states.shape,
        version=1,
    )
