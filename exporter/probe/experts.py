"""Confirms that a model's experts compute what the marker for experts does, by their numbers."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.errors import UserError

_ABSOLUTE = 1e-4
_EXPERTS = 2
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_WIDEST = 64


def require_gated(model: nn.Module) -> bool:
    """Whether experts lie swapped, as [E,H,2I] and [E,I,H] with gates and ups in turn.

    Raises UserError for experts that compute no gated SiLU, or lie in a third way.
    """
    swapped = False
    seen: set[type] = set()
    for module in model.modules():
        if type(module).__name__.endswith("Experts") and type(module) not in seen:
            seen.add(type(module))
            if not _is_gated(module):
                raise UserError(
                    f"the model's experts ({type(module).__name__}) compute something else than "
                    "a gated SiLU",
                    "only experts with a gate, an up and a down matrix and SiLU can be built",
                )
            swapped = bool(getattr(module, "is_transposed", False))
    return swapped


@torch.no_grad()
def _is_gated(module: Any) -> bool:
    """Compare two small experts, on random numbers."""
    if getattr(module, "gate_up_proj", None) is None or getattr(module, "down_proj", None) is None:
        return False
    swapped = bool(getattr(module, "is_transposed", False))
    if swapped == getattr(module, "is_concatenated", True):
        return False
    if not swapped and module._parameters.get("gate_up_proj_bias") is not None:
        return False
    try:
        small = _small(module)
        states = torch.randn(6, _hidden(small), generator=torch.Generator().manual_seed(1))
        chosen = torch.tensor([[0, 1], [1, 0]] * 3)
        weights = torch.rand(6, 2, generator=torch.Generator().manual_seed(2))
        found = small(states, chosen, weights)
        return float((found - _gated(small, states, chosen, weights)).abs().max()) < _ABSOLUTE
    except Exception:  # it takes other inputs
        return False


def _small(module: Any) -> Any:
    """The module with two experts of random weights, and few rows."""
    small, generator = copy.copy(module), torch.Generator().manual_seed(0)
    small._parameters = {}
    width = {size: min(size, _WIDEST + 2 * place) for place, size in enumerate(_sizes(module))}
    width |= {2 * size: 2 * least for size, least in list(width.items())}
    for name, weight in module._parameters.items():
        if weight is not None:
            shape = [_EXPERTS, *(width[size] for size in weight.shape[1:])]
            values = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
            small._parameters[name] = nn.Parameter(values, requires_grad=False)
    for name in _COUNTS:
        if hasattr(small, name):
            setattr(small, name, _EXPERTS)
    for name, value in vars(module).items():
        if type(value) is int and value in width and name not in _COUNTS:
            setattr(small, name, width[value])
    if hasattr(module, "config"):
        small.config = copy.copy(module.config)
        small.config._experts_implementation = "eager"
    return small


def _sizes(module: Any) -> tuple[int, int]:
    """The hidden size, and the width of an expert."""
    down = module.down_proj.shape
    hidden, width = (down[2], down[1]) if getattr(module, "is_transposed", False) else down[1:]
    return int(hidden), int(width)


def _hidden(module: Any) -> int:
    return _sizes(module)[0]


def _gated(module: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The marker's formula (graphs/markers.py)."""
    transposed = getattr(module, "is_transposed", False)
    gate_ups, downs = module.gate_up_proj, module.down_proj
    gate_ups, downs = (gate_ups.mT, downs.mT) if transposed else (gate_ups, downs)
    total = torch.zeros_like(states)
    for expert in range(_EXPERTS):
        both = states @ gate_ups[expert].mT + _bias(module, "gate_up_proj_bias", expert)
        in_halves = getattr(module, "is_concatenated", True)
        gate, up = both.chunk(2, -1) if in_halves else (both[:, ::2], both[:, 1::2])
        if limit := getattr(module, "limit", 0.0):
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        activated = gate * torch.sigmoid(getattr(module, "alpha", 1.0) * gate)
        product = activated * (up + (1.0 if hasattr(module, "alpha") else 0.0))
        out = product @ downs[expert].mT + _bias(module, "down_proj_bias", expert)
        total += out * (weights * (chosen == expert)).sum(-1, keepdim=True)
    return total


def _bias(module: Any, name: str, expert: int) -> Tensor | float:
    bias: Any = module._parameters.get(name)
    return 0.0 if bias is None else bias[expert]
