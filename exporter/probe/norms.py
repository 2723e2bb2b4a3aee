"""Confirms which modules are RMSNorms, and in which form, by their numbers."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.exporter.architectures.decoder import RMSNorm

_ABSOLUTE = {torch.float32: 1e-5, torch.bfloat16: 0.0}
"""Largest difference by dtype: what is rounded must be rounded at the same places."""


def norms_of(model: nn.Module) -> dict[str, RMSNorm]:
    """{class of a module: its form}, for every class that is confirmed."""
    found: dict[str, RMSNorm | None] = {}
    for module in model.modules():
        if _may_be_norm(module) and type(module).__name__ not in found:
            found[type(module).__name__] = _form(module)
    return {name: form for name, form in found.items() if form}


def _may_be_norm(module: nn.Module) -> bool:
    weights = [name for name, weight in module._parameters.items() if weight is not None]
    alone = weights == ["weight"] and not list(module.children())
    takes = inspect.signature(type(module).forward).parameters  # a gated norm takes a gate as well
    return alone and len(takes) == 2 and bool(module.weight.ndim == 1)


@torch.no_grad()
def _form(module: Any) -> RMSNorm | None:
    """The form whose numbers are the module's, in fp32 and in bf16."""
    try:
        runs = [_run(module, dtype) for dtype in _ABSOLUTE]
    except Exception:  # it wants other inputs than a norm does: traced as it is
        return None
    for form in _forms(module):
        if all(_agrees(form, module, *run) for run in runs):
            return form
    return None


def _run(module: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Random states, weights, and what the module makes of them."""
    generator, width = torch.Generator().manual_seed(0), module.weight.shape[0]
    alone = copy.copy(module)
    weight = (torch.randn(width, generator=generator) + 0.7).to(dtype)
    alone._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    # Small states tell one epsilon from another.
    states = (torch.randn(3, 5, width, generator=generator) * 1e-2).to(dtype)
    return states, weight, type(module).forward(alone, states)


def _forms(module: Any) -> Iterator[RMSNorm]:
    for name, value in vars(module).items():
        if isinstance(value, float):
            for offset in (0.0, 1.0):
                for in_fp32 in (False, True):
                    yield RMSNorm(epsilon=name, weight_offset=offset, in_fp32=in_fp32)


def _agrees(form: RMSNorm, module: Any, states: Tensor, weight: Tensor, expected: Tensor) -> bool:
    wide = states.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + getattr(module, form.epsilon))
    if form.in_fp32:
        found = (normed * (weight.float() + form.weight_offset)).to(states.dtype)
    else:
        factor = weight + form.weight_offset if form.weight_offset else weight
        found = factor * normed.to(states.dtype)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return float((found.float() - expected.float()).abs().max()) <= _ABSOLUTE[states.dtype]
