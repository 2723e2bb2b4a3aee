"""Confirms by their numbers how a model's RMSNorms and its RoPE calculate: they become operators.

Some twenty different functions of transformers have the name `apply_rotary_pos_emb`: channels are
paired by halves or by neighbours, frequencies are repeated in one of three ways, and parts of a
head may be left out.
"""

import copy
import inspect
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.errors import UserError
from snapexport.exporter.model.config import position_limit
from snapexport.exporter.model.decoder import Frequencies, Layer, RMSNorm, Rope
from snapexport.exporter.model.markers import (
    APPLY,
    APPLY_COMPLEX,
    APPLY_INTERLEAVED,
    angles_of,
    as_taken,
    cos_sin,
)
from snapexport.exporter.read.config_fields import DYNAMIC, ROPES_THAT_WORK

_NORM_ABSOLUTE = {torch.float32: 1e-5, torch.bfloat16: 0.0}
"""Largest difference by dtype: what is rounded must be rounded at the same places."""


def norms_of(model: nn.Module) -> dict[str, RMSNorm]:
    """{class of a module: its form}, for every class that is confirmed."""
    found: dict[str, RMSNorm | None] = {}
    for module in model.modules():
        if _may_be_norm(module) and type(module).__name__ not in found:
            found[type(module).__name__] = _norm(module)
    return {name: form for name, form in found.items() if form}


def _may_be_norm(module: nn.Module) -> bool:
    weights = [name for name, weight in module._parameters.items() if weight is not None]
    only_one = weights == ["weight"] and not list(module.children())
    takes = inspect.signature(type(module).forward).parameters  # a gated norm takes a gate as well
    return only_one and len(takes) == 2 and bool(module.weight.ndim == 1)


@torch.no_grad()
def _norm(module: Any) -> RMSNorm | None:
    """The form whose numbers are the module's, in fp32 and in bf16."""
    try:
        runs = [_run_norm(module, dtype) for dtype in _NORM_ABSOLUTE]
    except Exception:  # it wants other inputs than a norm does: traced as it is
        return None
    for form in _norms(module):
        if all(_agrees(form, module, *run) for run in runs):
            return form
    return None


def _run_norm(module: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Random states, weights, and what the module makes of them."""
    generator, width = torch.Generator().manual_seed(0), module.weight.shape[0]
    copied = copy.copy(module)
    weight = (torch.randn(width, generator=generator) + 0.7).to(dtype)
    copied._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    # Small states show which epsilon it is.
    states = (torch.randn(3, 5, width, generator=generator) * 1e-2).to(dtype)
    return states, weight, type(module).forward(copied, states)


def _norms(module: Any) -> Iterator[RMSNorm]:
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
    return float((found.float() - expected.float()).abs().max()) <= _NORM_ABSOLUTE[states.dtype]


_TOKENS, _FIRST = 7, 3
_ABSOLUTE = 1e-5


@torch.no_grad()
def rope_of(modeling: ModuleType, decoder: Any, layer: Layer, name: str = APPLY) -> Rope | None:
    """The form of a decoder's RoPE; None: not confirmed, so traced as it is.

    name: of the function; APPLY means APPLY_COMPLEX too.
    """
    module, apply = getattr(decoder, "rotary_emb", None), getattr(modeling, name, None)
    if module is None or (apply is None and name != APPLY):
        return None
    if apply is None:
        apply = getattr(modeling, APPLY_COMPLEX, None)
        return _complex_form(apply, module, decoder.config, layer)
    taken = list(inspect.signature(apply).parameters)
    of_one = taken[1:3] == ["cos", "sin"]
    if not of_one and taken[:4] != ["q", "k", "cos", "sin"]:
        return None
    try:
        cos, sin = _angles(module, decoder.config)
    except Exception:  # it takes other arguments
        return None
    # A model may hand over whole heads, or the part of each that is rotated.
    for width in dict.fromkeys((layer.key_dim, cos.shape[-1])):
        if form := _form(apply, of_one, cos, sin, _states(layer, width)):
            return replace(form, of_text=_has_axes(form, module, decoder.config, (cos, sin)))
    return None


def _has_axes(form: Rope, module: Any, config: Any, tables: tuple[Tensor, Tensor]) -> bool:
    """Whether a RoPE puts angles of several axes together, to those of one for a text."""
    if not (hasattr(module, "mrope_section") and hasattr(module, "inv_freq")):
        return False  # frequencies of each kind of layer are traced as they are
    plain = cos_sin(type(module)(config), *_inputs())
    return all(map(_is_close, (angles_of(form, one) for one in tables), plain))


def _states(layer: Layer, width: int) -> tuple[Tensor, Tensor]:
    """Queries and keys [1,H,C,D]."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, layer.heads, _TOKENS, width, generator=generator)
    return query, torch.randn(1, layer.kv_heads, _TOKENS, width, generator=generator)


def _form(
    apply: Any, of_one: bool, cos: Tensor, sin: Tensor, states: tuple[Tensor, Tensor]
) -> Rope | None:
    """The form whose numbers are the function's."""
    query, key = states
    try:
        if of_one:
            expected = apply(query, cos, sin), apply(key, cos, sin)
        else:
            expected = apply(query, key, cos, sin)
    except Exception:  # it takes other tensors: traced as it is
        return None
    for form, channels in _forms(cos, query.shape[-1], of_one):
        found = [rotate(form, one, cos, sin, channels) for one in states]
        pairs = list(zip(found, expected, strict=True))
        if apply.__name__ == APPLY_INTERLEAVED:  # it orders channels anew, of both alike
            pairs = [(_scores(*found), _scores(*expected))]
        if all(_is_close(*pair) for pair in pairs):
            return form
    return None


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key[:, :1].mT


def _complex_form(apply: Any, module: Any, config: Any, layer: Layer) -> Rope | None:
    """The form of a function of queries, keys and complex numbers [B,C,D/2]."""
    form = Rope("pairs", interleaved=True, takes="complex")
    for one in (form, replace(form, takes="complex by head")):
        try:
            turns = _angles(module, config)
            states = _states(layer, 2 * turns.shape[-1])
            expected = apply(*(as_taken(one, part) for part in states), turns)
            cos, sin = cos_sin(type(module)(config), *_inputs())
            turned = [rotate(one, part, cos, sin, part.shape[-1]) for part in states]
            if all(map(_is_close, (as_taken(one, part) for part in turned), expected)):
                return one
        except Exception:  # it takes other tensors
            continue
    return None


def require_said_ropes(config: Any, decoder: Any) -> None:
    """Raise UserError for a RoPE for each type of layer in a model that has only one."""
    ropes = (getattr(config, "rope_parameters", None) or {}).values()
    module = getattr(decoder, "rotary_emb", None)
    if module is None or not any(isinstance(rope, dict) for rope in ropes):
        return
    if not _is_by_type(module):
        raise UserError(
            "config.json gives a RoPE for each type of layer; a model_type "
            f"'{config.model_type}' has only one",
            "correct rope_parameters in config.json",
        )


def require_constant_ropes(config: Any, decoder: Any) -> None:
    """Raise UserError for a RoPE whose frequencies change with the sequence's length."""
    ropes = {type(one): one for one in decoder.modules() if hasattr(one, "rope_type")}
    for module in ropes.values():
        kinds = set(config.layer_types) if _is_by_type(module) else {None}
        for kind in kinds:
            if _is_constant(module, config, kind):
                continue
            name = module.rope_type if kind is None else module.rope_type[kind]
            raise UserError(
                f"RoPE of type '{name}' changes its frequencies with the sequence's "
                "length: keys in the cache would become invalid",
                ROPES_THAT_WORK,
            )


def _is_constant(module: Any, config: Any, kind: str | None) -> bool:
    """Whether positions have the same angles beside the last one of the model's limit."""
    states, few = _inputs()
    far = torch.cat((few, torch.tensor([[position_limit(config) - 1]])), -1)
    named = {"layer_type": kind} if kind else {}
    try:
        made = type(module)(config)
        short, long = (made(states, positions, **named) for positions in (few, far))
    except Exception:  # it takes other arguments
        return DYNAMIC not in str(module.rope_type)
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (short, long)), strict=True)
    return all(torch.equal(one, other[..., :_TOKENS, :]) for one, other in pairs)


def _is_by_type(module: Any) -> bool:
    return "layer_type" in inspect.signature(type(module).forward).parameters


def _angles(module: Any, config: Any) -> Any:
    """The angles of a few positions, by the model's own module."""
    named = {"layer_type": config.layer_types[0]} if _is_by_type(module) else {}
    return type(module)(config)(*_inputs(), **named)


def _inputs() -> tuple[Tensor, Tensor]:
    """States, of which only the dtype counts, and positions."""
    return torch.zeros(1), torch.arange(_FIRST, _FIRST + _TOKENS)[None]


def _forms(cos: Tensor, width: int, of_one: bool) -> Iterator[tuple[Rope, int]]:
    """Every form, and how many channels of a head it rotates."""
    listed = cos.shape[-1]
    turned: dict[Frequencies, int] = {"halves": listed, "steps": listed, "pairs": 2 * listed}
    for frequencies, channels in turned.items():
        for interleaved in (False, True):
            if channels <= width:
                yield Rope(frequencies, interleaved, "one" if of_one else "both"), channels


def rotate(form: Rope, states: Tensor, cos: Tensor, sin: Tensor, channels: int) -> Tensor:
    """Rotate states as ONNX's RotaryEmbedding does."""
    cos, sin = (angles_of(form, table)[:, None] for table in (cos, sin))
    turned, rest = states[..., :channels], states[..., channels:]
    if form.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    pair = first * cos - second * sin, first * sin + second * cos
    joined = torch.stack(pair, -1).flatten(-2) if form.interleaved else torch.cat(pair, -1)
    return torch.cat((joined, rest), -1)


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and float((found - expected).abs().max()) < _ABSOLUTE
