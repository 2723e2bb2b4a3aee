"""Confirms that a model's experts compute what the marker for experts does, by their numbers."""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from snapexport.errors import UserError
from snapexport.exporter.model.decoder import ExpertForm
from snapexport.exporter.model.markers import block_of_scaled_inputs, is_experts, sizes_of_expert
from snapexport.exporter.model.probe.miniature import miniature
from snapexport.graphs.markers import SWISH

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_RELATIVE = 1e-5
_LOUD = 8.0
"""Standard deviation of half of the states: gates and ups reach the limits that experts have. By
the other half the forms of GELU show."""
_EXPERTS = 2
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_OTHERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda gate: functional.relu(gate).square(),
}
"""Activations beside swish, as functions/experts.py has them."""
_UNIT = 8
"""Greatest common divisor of the small sizes."""


def form_of_experts(model: nn.Module, config: "PretrainedConfig") -> ExpertForm | None:
    """The form of the model's experts; None if it has none.

    Raises UserError for experts that compute another formula, or have another layout.
    """
    found: dict[str, ExpertForm] = {}
    for block in model.modules():
        for module in block.children():
            name = type(module).__name__
            if is_experts(module) and name not in found:
                form = _form(module, type(block), config)
                if form is None:
                    raise UserError(
                        f"the model's experts ({name}) compute a formula that no graph has, or "
                        "are not in stacks",
                        "only an up and a down matrix, with a gate or without, and SiLU, GELU, "
                        "ReLU or its square can be built",
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
def _form(module: Any, block: type, config: "PretrainedConfig") -> ExpertForm | None:
    """The form by which two small experts give the same, on random numbers.

    block: the class of what is around them.
    """
    has = {name for name, weight in module._parameters.items() if weight is not None}
    gated = "gate_up_proj" in has
    if "down_proj" not in has or gated == ("up_proj" in has):
        return None
    for transposed, scaled_inputs in itertools.product((False, True), (False, True)):
        small = _small(module, transposed)
        turns = (False, True) if gated else (False,)
        for in_turn, formula in itertools.product(turns, _formulas(module, gated)):
            form = ExpertForm(transposed, in_turn, *formula, scaled_inputs, gated)
            if not in_turn and "gate_up_proj_bias" in has:
                continue  # its halves would have to be taken in turn, as the matrix's are
            if _is_of(small, form):
                known = not scaled_inputs or _is_known_block(block, form, config)
                return form if known else None
    return None


def _is_of(small: Any, form: ExpertForm) -> bool:
    """Whether two small experts are of a form."""
    generator = torch.Generator().manual_seed(1)
    loud = torch.tensor([[_LOUD]] * 3 + [[1.0]] * 3)
    states = loud * torch.randn(6, sizes_of_expert(small, form.transposed)[0], generator=generator)
    chosen = torch.tensor([[0, 1], [1, 0]] * 3)
    weights = torch.rand(6, 2, generator=generator)
    try:
        if form.scaled_inputs:
            expected = _of_scaled_inputs(small, states, chosen, weights)
            found = _of_choices_of_one(small, form, states, chosen, weights)
        else:
            expected = small(states, chosen, weights)
            found = _run_gated(small, form, states, chosen, weights)
    except Exception:  # it takes other inputs, or its weights have another layout
        return False
    return _is_close(found, expected)


def _is_close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    return bool(((found - expected).abs().amax(-1) < _RELATIVE * expected.abs().amax(-1)).all())


def _of_scaled_inputs(small: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The output of experts on states times their weights, as they take them: sorted by experts."""
    factors = [(weights * (chosen == expert)).sum(-1, keepdim=True) for expert in range(_EXPERTS)]
    read = torch.cat([states * factor for factor in factors])
    made: Tensor = small(read)
    return made.view(_EXPERTS, *states.shape).sum(0)


def _of_choices_of_one(
    small: Any, form: ExpertForm, states: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The marker's formula, once for each expert that a token chooses."""
    total = torch.zeros_like(states)
    for weight, expert in zip(torch.split(weights, 1, 1), torch.split(chosen, 1, 1), strict=True):
        total += _run_gated(small, form, states * weight, expert, torch.ones_like(weight))
    return total


def _is_known_block(kind: type, form: ExpertForm, config: "PretrainedConfig") -> bool:
    """Whether a small block of experts computes what the one in its place will."""
    try:
        small = kind(miniature(config)).eval()
        generator = torch.Generator().manual_seed(0)
        for weight in small.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
        states = torch.randn(2, 5, small.experts.down_proj.shape[-1], generator=generator)
        expected = small(states)
        small.experts.forward = functools.partial(_run_gated, small.experts, form)
        found = block_of_scaled_inputs(small, states)
    except Exception:  # it has other parts
        return False
    return all(map(_is_close, found, expected))


def _formulas(module: Any, gated: bool) -> Iterator[tuple[str, float, float, float]]:
    """Activation, alpha, beta and limit: SiLU's, and what the module's own numbers make."""
    own = dict.fromkeys(value for value in vars(module).values() if type(value) is float)
    kinds = [*((SWISH, alpha) for alpha in (1.0, *own)), *((name, 1.0) for name in _OTHERS)]
    for limit in (0.0, *own) if gated else (0.0,):
        for activation, alpha in kinds:
            for beta in (0.0, 1.0) if gated else (0.0,):
                yield activation, alpha, beta, limit


def _small(module: Any, transposed: bool) -> Any:
    """The module with two experts of random weights, and few rows, in the same proportion."""
    small, generator = copy.copy(module), torch.Generator().manual_seed(0)
    small._parameters = {}
    hidden, wide = sizes_of_expert(module, transposed)
    common = max(1, math.gcd(hidden, wide) // _UNIT)
    width = {size: size // common for size in (hidden, wide, 2 * wide)}
    for name, weight in module._parameters.items():
        if weight is not None:
            shape = [_EXPERTS, *(size // common for size in weight.shape[1:])]
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


def _run_gated(
    module: Any, form: ExpertForm, states: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The marker's formula (graphs/markers.py)."""
    gate_ups, downs = module.gate_up_proj if form.gated else module.up_proj, module.down_proj
    gate_ups, downs = (gate_ups.mT, downs.mT) if form.transposed else (gate_ups, downs)
    total = torch.zeros_like(states)
    for expert in range(len(gate_ups)):
        both = states @ gate_ups[expert].mT + _bias(module, "gate_up_proj_bias", expert)
        product = _product(form, both) if form.gated else _activate(form, both)
        out = product @ downs[expert].mT + _bias(module, "down_proj_bias", expert)
        total += out * (weights * (chosen == expert)).sum(-1, keepdim=True)
    return total


def _product(form: ExpertForm, both: Tensor) -> Tensor:
    gate, up = (both[:, ::2], both[:, 1::2]) if form.in_turn else both.chunk(2, -1)
    if form.limit:
        gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
    return _activate(form, gate) * (up + form.beta)


def _activate(form: ExpertForm, gate: Tensor) -> Tensor:
    if form.activation == SWISH:
        return gate * torch.sigmoid(form.alpha * gate)
    return _OTHERS[form.activation](gate)


def _bias(module: Any, name: str, expert: int) -> Tensor | float:
    bias: Any = module._parameters.get(name)
    return 0.0 if bias is None else bias[expert]
