"""Confirms on a small model of random numbers that a decoder mixes positions only by attention.

The small model takes milliseconds, and has every layer of the original. Sizes are found by their
names in transformers' configs. What isn't known stays as it is.

Attention becomes a function of the row's own query, key and value. Then tokens can come in any
order, each with its position: what the model makes of them must come in the same order, and
positions that it counts itself must be the same. A convolution or a recurrent state shows, whatever
it is called.
"""

import copy
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from snapexport.errors import UserError
from snapexport.exporter.model.markers import scale_by_positions
from snapexport.exporter.model.models import hidden_states_of, modeling_of
from snapexport.exporter.model.probe.attention import MANY, replace_masks
from snapexport.exporter.model.states import OwnRow, states_replaced

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_HEADS, _HEAD_DIM, _WIDTH, _RANK = 4, 16, 32, 24
_EXPERTS, _CHOSEN, _GROUPS, _CHOSEN_GROUPS = 16, 4, 4, 2
_VOCABULARY = 257
_ATTENTION_HEADS = re.compile(r"(\w+_)?(num_attention_heads|n_heads?|num_heads)(_per_layer)?")
_KV_HEADS = re.compile(r"(\w+_)?num_(\w+_)?key_value_heads(_per_layer)?|num_kv_heads")
_SECTIONS, _PAIRS = "mrope_section", 4
_SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size(_per_layer_input)?", _VOCABULARY),
    (r"hidden_size|n_embd|d_model|word_embed_proj_dim", _HEADS * _HEAD_DIM),
    (r"(\w+_)?(intermediate_size|ffn_hidden_size)(_mlp)?|ffn_dim|d_ff|dff|n_inner", _WIDTH),
    (r"(\w+_)?lora_rank", _RANK),
    (r"qk_rope_head_dim", _HEAD_DIM // 2),
    (r"(\w+_)?head_dim|kv_channels", _HEAD_DIM),
    (r"hidden_size_per_layer_input|laurel_rank", _HEAD_DIM),
    (r"(moe_)?num_(local_)?experts|n_routed_experts", _EXPERTS),
    (r"num_experts_per_tok|(moe_)?top_?k(_experts)?|moe_k", _CHOSEN),
    (r"n_group", _GROUPS),
    (r"floor_scale", _HEAD_DIM),
    (r"topk_group", _CHOSEN_GROUPS),
)
"""Names of sizes, and the most that a small model has of each."""


def miniature(config: "PretrainedConfig") -> "PretrainedConfig":
    """A small model's config. All its layers are there, in their kinds."""
    small = copy.deepcopy(config)
    for name, value in vars(config).items():
        if shrunk := _shrinking(name, config):
            setattr(small, name, _each(value, shrunk))
        elif name.endswith("_token_id"):
            setattr(small, name, None if value is None else 0)
    if (rope := _rope(small)).get(_SECTIONS):
        width = getattr(small, "head_dim", None) or small.hidden_size // _queries(small)
        pairs = int(width * _share_turned(config)) // 2
        rope[_SECTIONS] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return small


def _rope(config: Any) -> dict[str, Any]:
    """The parameters of RoPE, if all layers have the same."""
    found = getattr(config, "rope_parameters", None)
    return found if isinstance(found, dict) else {}


def _share_turned(config: Any) -> float:
    """The share of a head that RoPE turns."""
    return float(_rope(config).get("partial_rotary_factor", 1.0))


def _each(value: Any, shrunk: Callable[[int], int]) -> Any:
    """A size, or one for each layer."""
    if isinstance(value, list):
        return [_each(one, shrunk) for one in value]
    return shrunk(value) if type(value) is int else value


def _shrinking(name: str, config: Any) -> Callable[[int], int] | None:
    """Makes a field's numbers small."""
    if _ATTENTION_HEADS.fullmatch(name):
        return lambda heads: min(heads, _HEADS)
    if _KV_HEADS.fullmatch(name):
        return lambda kv_heads: _kv_heads(kv_heads, _queries(config))
    if name == "rotary_dim":
        whole = getattr(config, "head_dim", None) or config.hidden_size // _queries(config)
        return lambda rotated: max(2, rotated * _HEAD_DIM // whole)
    if name == "head_dim" and _share_turned(config) < 1:  # pairs for time, height and width
        return lambda size: min(size, max(_HEAD_DIM, int(2 * _PAIRS / _share_turned(config))))
    for pattern, most in _SIZES:
        if re.fullmatch(pattern, name):
            return lambda size: min(size, most)
    return None


def _queries(config: Any) -> int:
    return int(config.num_attention_heads)


def _kv_heads(kv_heads: int, heads: int) -> int:
    """A small number of heads: as many as queries, or some of them, or one, as before."""
    if kv_heads >= heads or heads <= _HEADS:
        return min(kv_heads, _HEADS)
    return min(kv_heads, _HEADS // 2)


_IMPLEMENTATION = "snapexport_probe_rows"
_RELATIVE = 1e-3
_MOST = 1 << 27
"""Numbers in a small model. More are of parts whose sizes aren't known, such as a vision tower."""


def _own_row(
    _: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any
) -> tuple[Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    keys, values = (states.repeat_interleave(groups, 1) for states in (key, value))
    scores = (query * keys).sum(-1, keepdim=True) * query.shape[-1] ** -0.5
    return (scores.tanh() * values).transpose(1, 2), None


AttentionInterface.register(_IMPLEMENTATION, _own_row)


def require_local(inside: Any, layers: str) -> None:
    """Raise UserError for a decoder that mixes positions outside of attention.

    inside: the decoder, on any device. layers: the path of its layers in it.
    """
    runs = states_of(inside, layers)
    if runs is None:
        return
    in_order, mixed, counted = runs
    for place, (one, other) in enumerate(zip(in_order, mixed, strict=True)):
        if not _is_close(one, other):
            where = f"layer {place - 1} mixes" if place else "the decoder mixes"
            raise UserError(
                f"{where} positions outside of attention, or makes positions of its own",
                "only decoders whose layers hold only keys and values can be built",
            )
    if not all(map(_is_close, in_order, counted)):
        raise UserError(
            "the decoder counts positions in a way of its own",
            "only decoders whose first token has position 0 can be built",
        )


def states_of(inside: Any, layers: str) -> list[list[Tensor]] | None:
    """The input of the first layer and the output of each, by tokens in three orders.

    The tokens come in order, out of it, and without positions. All are sorted by positions. None:
    no small model can be made, as the sizes of this one don't fit together; it was recorded all the
    same.
    """
    try:
        small = _small(inside)
        return small and _states(small, layers)
    except Exception:
        return None


@torch.no_grad()
def _small(inside: Any) -> Any:
    """A small decoder of the class, on the CPU, of random weights; None if it isn't small."""
    config = miniature(inside.config)
    config._attn_implementation = _IMPLEMENTATION
    with torch.device("meta"):
        if sum(weight.numel() for weight in type(inside)(config).parameters()) > _MOST:
            return None
    with torch.device("cpu"):
        small = type(inside)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in small.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1:
            weight.copy_(noise / weight.shape[-1] ** 0.5)
        else:
            weight.add_(0.3 * noise)
    return small


@torch.no_grad()
def _states(small: Any, layers: str) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(small.config.vocab_size, (1, MANY), generator=generator)
    mixed = torch.randperm(MANY, generator=generator)
    seen: list[Tensor] = []
    listed = small.get_submodule(layers)
    listed[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for layer in listed:
        layer.register_forward_hook(lambda *call: seen.append(_first(call[2])))

    def run(order: Tensor, positions: Tensor | None) -> list[Tensor]:
        seen.clear()
        modeling = modeling_of(small, "")
        with replace_masks(modeling, lambda *_: None), states_replaced(modeling, OwnRow()):
            hidden_states_of(small, tokens[:, order], positions)
        return [states[..., order.argsort(), :] for states in seen]

    ascending = torch.arange(MANY)
    # The first run of a process is not kept: in one of six, PyTorch 2.13 calculates it less exactly
    # on two threads (by 5e-4 in the first layer), and the others alike to the last bit.
    run(ascending, None)
    counted = run(ascending, None)
    scale_by_positions(small)
    return [run(ascending, ascending[None]), run(mixed, mixed[None]), counted]


def _first(output: Any) -> Tensor:
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _is_close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _RELATIVE * one.abs().max())
