"""Confirms how a model's `apply_rotary_pos_emb` rotates, by its numbers.

Some twenty different functions of transformers have this name: channels are paired by halves or
by neighbours, frequencies are repeated in one of three ways, and parts of a head may be left out.
"""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from snapexport.errors import UserError
from snapexport.exporter.architectures.decoder import Frequencies, Layer, Rope
from snapexport.exporter.latent_attention import cos_sin

APPLY, APPLY_COMPLEX = "apply_rotary_pos_emb", "apply_rotary_emb"
_TOKENS, _FIRST = 7, 3
_ABSOLUTE = 1e-5


@torch.no_grad()
def rope_of(modeling: ModuleType, decoder: Any, layer: Layer) -> Rope | None:
    """The form of a decoder's RoPE; None: not confirmed, so traced as it is."""
    module = getattr(decoder, "rotary_emb", None)
    apply, apply_complex = (getattr(modeling, name, None) for name in (APPLY, APPLY_COMPLEX))
    if module is None:
        return None
    if apply is None:
        return _complex_form(apply_complex, module, decoder.config, layer)
    taken = list(inspect.signature(apply).parameters)
    alone = taken[1:3] == ["cos", "sin"]
    if not alone and taken[:4] != ["q", "k", "cos", "sin"]:
        return None
    try:
        cos, sin = _angles(module, decoder.config)
    except Exception:  # it takes other arguments
        return None
    # A model may hand over whole heads, or the part of each that is rotated.
    for width in dict.fromkeys((layer.key_dim, cos.shape[-1])):
        if form := _form(apply, alone, cos, sin, _states(layer, width)):
            return form
    return None


def _states(layer: Layer, width: int) -> tuple[Tensor, Tensor]:
    """Queries and keys [1,H,C,D]."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, layer.heads, _TOKENS, width, generator=generator)
    return query, torch.randn(1, layer.kv_heads, _TOKENS, width, generator=generator)


def _form(
    apply: Any, alone: bool, cos: Tensor, sin: Tensor, states: tuple[Tensor, Tensor]
) -> Rope | None:
    """The form whose numbers are the function's."""
    query, key = states
    try:
        if alone:
            expected = apply(query, cos, sin), apply(key, cos, sin)
        else:
            expected = apply(query, key, cos, sin)
    except Exception:  # it takes other tensors: traced as it is
        return None
    for form, channels in _forms(cos, query.shape[-1], alone):
        found = [rotated(form, one, cos, sin, channels) for one in states]
        if all(_is_close(*pair) for pair in zip(found, expected, strict=True)):
            return form
    return None


def _complex_form(apply: Any, module: Any, config: Any, layer: Layer) -> Rope | None:
    """The form of a function of queries, keys [B,C,H,D] and complex numbers [B,C,D/2]."""
    form = Rope("pairs", interleaved=True, takes="complex")
    try:
        turns = _angles(module, config)
        states = _states(layer, 2 * turns.shape[-1])
        expected = apply(*(one.transpose(1, 2) for one in states), turns)
        cos, sin = cos_sin(type(module)(config), *_inputs())
        found = [rotated(form, one, cos, sin, one.shape[-1]).transpose(1, 2) for one in states]
    except Exception:  # it takes other tensors: traced as it is
        return None
    return form if all(map(_is_close, found, expected)) else None


def require_said_ropes(config: Any, decoder: Any) -> None:
    """Raise UserError for a RoPE for each type of layer in a model that has only one."""
    ropes = (getattr(config, "rope_parameters", None) or {}).values()
    module = getattr(decoder, "rotary_emb", None)
    if module is None or not any(isinstance(rope, dict) for rope in ropes):
        return
    if "layer_type" not in inspect.signature(type(module).forward).parameters:
        raise UserError(
            "config.json gives a RoPE for each type of layer; a model_type "
            f"'{config.model_type}' has only one",
            "correct rope_parameters in config.json",
        )


def _angles(module: Any, config: Any) -> Any:
    """Of a few positions, by the model's own module."""
    by_type = "layer_type" in inspect.signature(type(module).forward).parameters
    named = {"layer_type": config.layer_types[0]} if by_type else {}
    return type(module)(config)(*_inputs(), **named)


def _inputs() -> tuple[Tensor, Tensor]:
    """States, of which only the dtype counts, and positions."""
    return torch.zeros(1), torch.arange(_FIRST, _FIRST + _TOKENS)[None]


def _forms(cos: Tensor, width: int, alone: bool) -> Iterator[tuple[Rope, int]]:
    """Every form, and how many channels of a head it rotates."""
    listed = cos.shape[-1]
    turned: dict[Frequencies, int] = {"halves": listed, "steps": listed, "pairs": 2 * listed}
    for frequencies, channels in turned.items():
        for interleaved in (False, True):
            if channels <= width:
                yield Rope(frequencies, interleaved, "one" if alone else "both"), channels


def angles_of(form: Rope, table: Tensor) -> Tensor:
    """A table of cosines or sines [B,C,n] with one number for each pair."""
    if form.frequencies == "halves":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if form.frequencies == "steps" else table


def rotated(form: Rope, states: Tensor, cos: Tensor, sin: Tensor, channels: int) -> Tensor:
    """As ONNX's RotaryEmbedding calculates."""
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
