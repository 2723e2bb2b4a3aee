"""Confirms that a model's experts compute what the marker for experts does, by their numbers."""

import copy
from collections.abc import Iterator
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.errors import UserError
from snapexport.exporter.architectures.decoder import ExpertForm

_RELATIVE = 1e-5
_LOUD = 8.0
"""Standard deviation of the states: gates and ups reach the limits that experts have."""
_EXPERTS = 2
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_WIDEST = 64


def form_of_experts(model: nn.Module) -> ExpertForm | None:
    """The form of the model's experts; None if it has none.

    Raises UserError for experts that compute something else than a gated SiLU, or lie otherwise.
    """
    found: dict[str, ExpertForm] = {}
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("Experts") and name not in found:
            form = _form(module)
            if form is None:
                raise UserError(
                    f"the model's experts ({name}) compute no gated SiLU, or don't lie in stacks",
                    "only experts with a gate, an up and a down matrix and SiLU can be built",
                )
            found[name] = form
    forms = list(dict.fromkeys(found.values()))
    if len(forms) > 1:
        raise UserError(
            f"the model's experts ({' and '.join(found)}) compute different formulas",
            "only decoders whose experts are of one kind can be built",
        )
    return forms[0] if forms else None


@torch.no_grad()
def _form(module: Any) -> ExpertForm | None:
    """The form by which two small experts give the same, on random numbers."""
    if getattr(module, "gate_up_proj", None) is None or getattr(module, "down_proj", None) is None:
        return None
    transposed = bool(getattr(module, "is_transposed", False))
    in_turn = not getattr(module, "is_concatenated", True)
    if not in_turn and module._parameters.get("gate_up_proj_bias") is not None:
        return None
    try:
        small = _small(module)
        states = _LOUD * torch.randn(6, _hidden(small), generator=torch.Generator().manual_seed(1))
        chosen = torch.tensor([[0, 1], [1, 0]] * 3)
        weights = torch.rand(6, 2, generator=torch.Generator().manual_seed(2))
        expected = small(states, chosen, weights)
    except Exception:  # it takes other inputs
        return None
    for alpha, beta, limit in _formulas(module):
        form = ExpertForm(transposed, in_turn, alpha, beta, limit)
        found = _gated(small, form, states, chosen, weights)
        if float((found - expected).abs().max()) < _RELATIVE * float(expected.abs().max()):
            return form
    return None


def _formulas(module: Any) -> Iterator[tuple[float, float, float]]:
    """Alpha, beta and limit: SiLU's, and what the module's own numbers make."""
    own = dict.fromkeys(value for value in vars(module).values() if type(value) is float)
    for limit in (0.0, *own):
        for alpha in (1.0, *own):
            for beta in (0.0, 1.0):
                yield alpha, beta, limit


def _small(module: Any) -> Any:
    """The module with two experts of random weights, and few rows."""
    small, generator = copy.copy(module), torch.Generator().manual_seed(0)
    small._parameters = {}
    width = _narrow(*_sizes(module))
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


def _narrow(hidden: int, width: int) -> dict[int, int]:
    """{size: a smaller one}, in the same proportion: a size may be another one's double."""
    unit = gcd(hidden, width)
    factor = max(1, _WIDEST * unit // max(hidden, width))
    sizes = (hidden, width, 2 * hidden, 2 * width)
    return {size: min(size, size // unit * factor) for size in sizes}


def _sizes(module: Any) -> tuple[int, int]:
    """The hidden size, and the width of an expert."""
    down = module.down_proj.shape
    hidden, width = (down[2], down[1]) if getattr(module, "is_transposed", False) else down[1:]
    return int(hidden), int(width)


def _hidden(module: Any) -> int:
    return _sizes(module)[0]


def _gated(
    module: Any, form: ExpertForm, states: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The marker's formula (graphs/markers.py)."""
    gate_ups, downs = module.gate_up_proj, module.down_proj
    gate_ups, downs = (gate_ups.mT, downs.mT) if form.transposed else (gate_ups, downs)
    total = torch.zeros_like(states)
    for expert in range(_EXPERTS):
        both = states @ gate_ups[expert].mT + _bias(module, "gate_up_proj_bias", expert)
        gate, up = (both[:, ::2], both[:, 1::2]) if form.in_turn else both.chunk(2, -1)
        if form.limit:
            gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
        product = gate * torch.sigmoid(form.alpha * gate) * (up + form.beta)
        out = product @ downs[expert].mT + _bias(module, "down_proj_bias", expert)
        total += out * (weights * (chosen == expert)).sum(-1, keepdim=True)
    return total


def _bias(module: Any, name: str, expert: int) -> Tensor | float:
    bias: Any = module._parameters.get(name)
    return 0.0 if bias is None else bias[expert]
