"""Says which layers of a model differ only in their weights, and whether they attend to latents.

Multi-head latent attention (MLA) is confirmed: what attention reads is projected up from latents.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.errors import UserError
from snapexport.exporter.model.decoder import ExpertForm, ExpertSizes, Layer
from snapexport.exporter.model.markers import is_latent, sizes_of_expert
from snapexport.exporter.model.probe.attention import (
    Call,
    Recorded,
    in_place_of_attention,
    require_causal,
    window_and_chunk,
)
from snapexport.exporter.read.config_fields import CORRECT

_INDICES = ("layer_idx", "layer_id", "layer_number", "training")


def layers_of(
    model: Any, recorded: Recorded, layers: str, limit: int, form: ExpertForm | None
) -> tuple[Layer, ...]:
    """The model's layers. limit: its longest sequence. Raises UserError for unlike ones."""
    modules = list(model.get_submodule(layers))
    calls = {call.layer: call for call in recorded.calls}
    some = recorded.calls[0]
    config = model.get_submodule(layers.rpartition(".")[0]).config
    kinds: dict[str, int] = {}
    shared = _number_shared(recorded.inputs)
    found: list[Layer] = []
    for index, module in enumerate(modules):
        attends = index in calls
        call = calls.get(index, some)
        require_causal(call)
        window, chunk = window_and_chunk(call, config) if attends else (0, 0)
        described = _describe(module, call, (window, chunk))
        described += repr([shared.get(one) for one in _tensors(recorded.inputs[index])])
        found.append(
            Layer(
                kind=kinds.setdefault(described, len(kinds)),
                heads=call.heads,
                kv_heads=call.kv_heads,
                key_dim=call.key_dim,
                value_dim=call.value_dim,
                window=0 if window >= limit else window,
                chunk=0 if chunk >= limit else chunk,
                sinks=call.sinks,
                softcapped=bool(call.softcap),
                cache_of=_first_with(recorded.calls, call) if attends else -1,
                states=recorded.states.get(index),
                experts=_experts(module, f"{layers}.{index}", recorded.chosen, form),
            )
        )
    return tuple(found)


def read_their_own(recorded: Recorded, layers: Sequence[Layer]) -> bool:
    """Whether a layer gets a tensor that others of its kind don't, or another layer's cache."""
    if any(layer.cache_of not in (-1, index) for index, layer in enumerate(layers)):
        return True
    first: dict[int, Mapping[str, Any]] = {}
    for layer, given in zip(layers, recorded.inputs, strict=True):
        others = first.setdefault(layer.kind, given)
        if _tensors(given) != _tensors(others):
            return True
    return False


def _tensors(value: Any) -> list[int]:
    """The identities of the tensors that an argument holds."""
    if isinstance(value, Tensor):
        return [id(value)]
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | tuple | list):
        return [found for item in items for found in _tensors(item)]
    return []


def _number_shared(inputs: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """A number for each tensor that several layers get, such as a RoPE's cosines."""
    given = Counter(one for of_layer in inputs for one in _tensors(of_layer))
    return {one: place for place, one in enumerate(given) if given[one] > 1}


def require_one_call_each(model: Any, recorded: Recorded, layers: str) -> None:
    """Raise UserError unless each layer called attention once, in the layers' order.

    Beside layers with recurrent states others may hold nothing.
    """
    modules = list(model.get_submodule(layers))
    made = [call.layer for call in recorded.calls]
    if made == list(range(len(modules))):
        return
    if not made and recorded.states:
        raise UserError(
            "no layer of the model attends",
            "only decoders that attend in some layers have caches to build",
        )
    if not set(made) <= set(range(len(modules))):
        raise UserError(
            "layers attend by modules that they share",
            "only decoders whose layers have attention of their own can be built",
        )
    counts = [made.count(index) for index in range(len(modules))]
    least = 0 if recorded.states else 1
    odd = next((n for n, count in enumerate(counts) if not least <= count <= 1), None)
    if odd is None and made and made == sorted(made):
        return
    if odd is None:
        what = f"the model's {len(modules)} layers attend {len(made)} times"
    elif counts[odd]:
        what = f"layer {odd} attends {counts[odd]} times"
    else:
        part = in_place_of_attention(modules[odd])
        what = f"layer {odd} attends by code of its own ({part})"
    raise UserError(
        what, "only decoders each of whose layers calls transformers' attention once can be built"
    )


def _state(layer: nn.Module) -> str:
    """The class of a module that mixes positions in another way than attention."""
    for module in layer.modules():
        children = [type(child) for child in module.children()]
        if nn.Conv1d in children:
            return type(module).__name__
    return ""


def require_known_states(model: Any, recorded: Recorded, layers: str) -> None:
    """Raise UserError for layers that mix positions by a convolution of another form."""
    for index, layer in enumerate(model.get_submodule(layers)):
        if index not in recorded.states and (state := _state(layer)):
            raise UserError(
                f"layer {index} mixes positions by a recurrent state ({state})",
                "only states by the convolutions and recurrences that models share can be built",
            )


def require_said_types(config: Any, layers: Sequence[Layer]) -> None:
    """Raise UserError for a layer of another type than config.json says: the model ignores it."""
    types, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if not isinstance(types, list) or len(types) != len(layers):
        return
    limit = int(config.max_position_embeddings)
    for index, (said, layer) in enumerate(zip(types, layers, strict=True)):
        slides = said == "sliding_attention" and not layer.window and (window or 0) < limit
        if slides or (said == "chunked_attention" and not layer.chunk):
            raise UserError(
                f"layers of type '{said}' are not supported in a model_type "
                f"'{config.model_type}': layer {index} attends to all positions",
                CORRECT,
            )


def _first_with(calls: Sequence[Call], call: Call) -> int:
    """The layer that made the keys that a call attends to."""
    return next(other.layer for other in calls if other.key is call.key)


def _experts(
    layer: Any, path: str, chosen: Mapping[str, int], form: ExpertForm | None
) -> ExpertSizes | None:
    for name, module in layer.named_modules():
        if form and (count := chosen.get(f"{path}.{name}")) is not None:
            hidden, width = sizes_of_expert(module, form.transposed)
            matrices = 3 if form.gated else 2
            return ExpertSizes(len(module.down_proj), count, width, hidden, matrices)
    return None


def _describe(layer: nn.Module, call: Call, sight: tuple[int, int]) -> str:
    """All that makes a layer's graph: its modules, their shapes and numbers, and its attention."""
    parts: list[object] = [sight, call.heads, call.kv_heads, call.key_dim, call.value_dim]
    parts += [call.scale, call.softcap, call.sinks]
    for path, module in layer.named_modules():
        numbers = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, int | float | str) and name not in _INDICES
        }
        weights = {
            name: tuple(weight.shape)
            for name, weight in module._parameters.items()
            if weight is not None
        }
        parts += [path, type(module).__name__, sorted(numbers.items()), sorted(weights.items())]
    return repr(parts)


_SMALL = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 8}
_TOKENS = 5
_ABSOLUTE = 1e-4
_OTHER = "only latent attention whose heads read [W_UK c_kv, k_rope] and W_UV c_kv can be built"


def has_latents(model: Any, recorded: Recorded, layers: Sequence[Layer]) -> bool:
    """Whether layers attend to latents. Raises UserError for those of another form."""
    latent = [module for module in model.modules() if is_latent(module)]
    if not latent:
        return False
    name = type(latent[0]).__name__
    if len({type(module) for module in latent}) > 1 or len(latent) != len(recorded.calls):
        raise UserError("some of the model's layers attend to latents, and others don't", _OTHER)
    expanded = {(id(key), id(value)) for key, value in recorded.expanded}
    if not {(id(call.key), id(call.value)) for call in recorded.calls} <= expanded:
        raise UserError(f"the model's latent attention ({name}) has other parts", _OTHER)
    if any(one.window or one.chunk or one.sinks or one.softcapped for one in layers):
        raise UserError(f"the model's latent attention ({name}) has windows or sinks", _OTHER)
    try:
        fits = _expands(latent[0])
    except Exception:  # it takes other inputs
        fits = False
    if not fits:
        raise UserError(f"the model's latent attention ({name}) has keys of another form", _OTHER)
    return True


@torch.no_grad()
def _expands(module: Any) -> bool:
    """Whether a small module projects latents up as the marker does (graphs/markers.py)."""
    config = copy.deepcopy(module.config)
    for field, size in _SMALL.items():
        setattr(config, field, size)
    if config.q_lora_rank is not None:
        config.q_lora_rank = _SMALL["kv_lora_rank"]
    torch.manual_seed(0)
    small, rank, nope = type(module)(config, 0), config.kv_lora_rank, config.qk_nope_head_dim
    up = small.kv_b_proj.weight.view(2, -1, rank)
    c_kv = torch.randn(1, 1, _TOKENS, rank)
    k_rope = torch.randn(1, 1, _TOKENS, config.qk_rope_head_dim)
    expected = small.expand_kv(c_kv, k_rope)
    keys = torch.cat((c_kv @ up[:, :nope].mT, k_rope.expand(-1, 2, -1, -1)), -1)
    found = keys, c_kv @ up[:, nope:].mT
    return all(
        one.shape == other.shape and bool((one - other).abs().max() < _ABSOLUTE)
        for one, other in zip(found, expected, strict=True)
    )
