"""Records how each layer of a model calls attention, on tensors without memory."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from snapexport.contract.model_facts import StateSizes
from snapexport.errors import UserError
from snapexport.exporter.model.markers import is_experts, is_latent
from snapexport.exporter.model.models import hidden_states_of, modeling_of
from snapexport.exporter.model.probe.states import Recording
from snapexport.exporter.model.states import states_replaced

IMPLEMENTATION = "snapexport_probe"
_FEW, MANY = 8, 300
"""Tokens: few for recurrent states, which take them one by one, and more than any rate by which a
model compresses positions for itself."""
_KNOWN = ("scaling", "sliding_window", "softcap", "s_aux")
"""Arguments of attention that markers express."""
_IDLE = (
    *("position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict"),
    *("cache_position", "is_causal", "output_router_logits", "layer_idx", "position_embeddings"),
    *("dropout", "num_items_in_batch", "logits_to_keep"),
)
"""Arguments that change nothing here."""
_RECURRENT = "create_recurrent_attention_mask"
"""Makes the mask of padding that states skip; there is none."""
_FULL, _SLIDING, _CHUNKED = (
    "create_causal_mask",
    "create_sliding_window_causal_mask",
    "create_chunked_causal_mask",
)
_UNLIKE = "only layers that call transformers' attention once can be built"


class Mask(Tensor):
    """The mask that a function would make, also if it is cut or converted.

    kind: the function. narrowed: by a further function.
    """

    kind: str
    narrowed: bool

    @classmethod
    def made_by(cls, tokens: int, kind: str, narrowed: bool) -> "Mask":
        made: Mask = torch.zeros(1, 1, tokens, tokens, device="meta").as_subclass(cls)
        made.kind, made.narrowed = kind, narrowed
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make a plain tensor of what is calculated of a mask: a mask of the model's own."""
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and function in _KEEPING and isinstance(args[0], Mask):
            made = made.as_subclass(cls)
            made.kind, made.narrowed = args[0].kind, args[0].narrowed
        return made


_KEEPING = (Tensor.__getitem__, Tensor.to, Tensor.contiguous, Tensor.expand)


@dataclass(frozen=True)
class Call:
    """One call of attention. key, value: the tensors themselves, by which shared ones are found."""

    layer: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    mask: Mask | None
    scale: float
    window: int
    softcap: float
    sinks: bool
    key: Tensor
    value: Tensor


@dataclass
class Recorded:
    """All that a model did.

    chosen: {experts module's path: experts that a token chooses}. expanded: keys and values that
    latents were projected up to.
    """

    calls: list[Call] = field(default_factory=list)
    chosen: dict[str, int] = field(default_factory=dict)
    inputs: list[Mapping[str, Any]] = field(default_factory=list)
    states: Mapping[int, StateSizes] = field(default_factory=dict)
    expanded: list[tuple[Tensor, Tensor]] = field(default_factory=list)


_recorded = Recorded()


def _record(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *_: Any,
    **given: Any,
) -> tuple[Tensor, None]:
    for name, argument in given.items():
        if name not in _KNOWN and name not in _IDLE and argument is not None:
            raise UserError(
                f"layer {getattr(module, 'layer_idx', '?')} hands attention the argument {name}, "
                "which no graph knows",
                _UNLIKE,
            )
    if attention_mask is not None and not isinstance(attention_mask, Mask):
        raise UserError(
            f"layer {getattr(module, 'layer_idx', '?')} makes an attention mask of its own",
            "only causal attention, to all positions, to a window or to a chunk, can be built",
        )
    sinks = given.get("s_aux")
    _recorded.calls.append(
        Call(
            layer=getattr(module, "layer_idx", -1),
            heads=query.shape[1],
            kv_heads=key.shape[1],
            key_dim=key.shape[-1],
            value_dim=value.shape[-1],
            mask=attention_mask,
            scale=float(given.get("scaling") or query.shape[-1] ** -0.5),
            window=int(given.get("sliding_window") or 0),
            softcap=float(given.get("softcap") or 0.0),
            sinks=sinks is not None,
            key=key,
            value=value,
        )
    )
    batch, heads, chunk, _width = query.shape
    if key.shape[2] != chunk:
        raise UserError(
            f"layer {_recorded.calls[-1].layer} attends to {key.shape[2]} keys of {chunk} tokens",
            "only layers with a key for each token can be built",
        )
    return query.new_empty(batch, chunk, heads, value.shape[-1]), None


AttentionInterface.register(IMPLEMENTATION, _record)


def record(model: Any, decoder: str, layers: str) -> Recorded:
    """Run a model on the meta device, made with the implementation above. Raises UserError."""
    global _recorded
    _recorded = found = Recorded()
    _stub_experts(model)
    for module in model.modules():
        if is_latent(module) and hasattr(module, "expand_kv"):
            module.expand_kv = functools.partial(_expand, module.expand_kv)
    for layer in model.get_submodule(layers):
        layer.register_forward_pre_hook(_remember_inputs, with_kwargs=True)
    states = Recording(lambda: len(_recorded.inputs) - 1)
    with states_replaced(modeling_of(model, decoder), states):
        _run(model, decoder, layers, _FEW)
    found.states = dict(states.sizes)
    states.sizes.clear()
    if found.calls:
        _recorded = Recorded()
        with states_replaced(modeling_of(model, decoder), states):
            _run(model, decoder, layers, MANY)
    return found


def _expand(expand: Callable[..., tuple[Tensor, Tensor]], *latents: Tensor) -> Any:
    _recorded.expanded.append(expand(*latents))
    return _recorded.expanded[-1]


def _run(model: Any, decoder: str, layers: str, tokens: int) -> None:
    ids = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    masks = replace_masks(modeling_of(model, decoder), functools.partial(Mask.made_by, tokens))
    try:
        with masks, torch.no_grad(), torch.device("meta"):
            hidden_states_of(model.get_submodule(decoder), ids, ids)
    except UserError:
        raise
    except Exception as error:
        place = len(_recorded.inputs) - 1
        part = in_place_of_attention(model.get_submodule(layers)[place]) if place >= 0 else ""
        raise UserError(
            (f"layer {place} ({part})" if part else "the decoder")
            + f" needs more than tokens and positions: {type(error).__name__}: "
            f"{' '.join(str(error).split())!s:.160}",
            _UNLIKE,
        ) from None


def in_place_of_attention(layer: nn.Module) -> str:
    """The class of the part that a layer has in the place of attention."""
    names = [type(part).__name__ for part in layer.modules()]
    attention = (name for name in names if "Attention" in name or "Mixer" in name)
    parts = (type(part).__name__ for part in layer.children() if "Norm" not in type(part).__name__)
    return next(attention, next(parts, names[0]))


def _remember_inputs(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Tensors that a layer gets beside the hidden states."""
    rest = {str(place): value for place, value in enumerate(positional[1:], start=1)}
    beside = {name: value for name, value in named.items() if name != "hidden_states"}
    _recorded.inputs.append(rest | beside)


def _stub_experts(model: nn.Module) -> None:
    """Experts loop over what routers chose, which meta tensors don't know."""
    for above, block in model.named_modules():
        for name, module in block.named_children():
            if is_experts(module):
                # Experts whose inputs are scaled don't get the choice.
                usual = getattr(block, "top_k", 1)

                def stub(
                    states: Tensor,
                    chosen: Any = None,
                    *_: Any,
                    path: str = f"{above}.{name}",
                    usual: int = usual,
                    **__: Any,
                ) -> Tensor:
                    is_told = isinstance(chosen, Tensor)
                    _recorded.chosen[path] = chosen.shape[-1] if is_told else usual
                    return torch.empty_like(states)

                module.forward = stub


@contextmanager
def replace_masks(modeling: ModuleType, made: Callable[[str, bool], Any]) -> Iterator[None]:
    """Functions that make masks return what is `made` of their name and whether they narrow it."""
    functions = {n: f for n, f in vars(modeling).items() if re.fullmatch(r"create_\w*mask\w*", n)}

    def stand_in(name: str) -> Any:
        def make(*_: Any, **given: Any) -> Any:
            narrowed = given.get("or_mask_function") or given.get("and_mask_function")
            return None if name == _RECURRENT else made(name, bool(narrowed))

        return make

    for name in functions:
        setattr(modeling, name, stand_in(name))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(modeling, name, function)


def require_causal(call: Call) -> None:
    """Raise UserError for a mask that graphs don't have."""
    mask = call.mask
    if mask is None:
        return
    if mask.narrowed or mask.kind not in (_FULL, _SLIDING, _CHUNKED):
        kind = mask.kind.removeprefix("create_").removesuffix("_mask").replace("_", " ")
        raise UserError(
            f"layer {call.layer} attends by a mask of another kind ({kind}"
            + (", narrowed by a function)" if mask.narrowed else ")"),
            "only causal attention, to all positions, to a window or to a chunk, can be built",
        )


def window_and_chunk(call: Call, config: Any) -> tuple[int, int]:
    """Positions that a call of attention sees: of a window, or since a multiple; 0: all."""
    kind = _FULL if call.mask is None else call.mask.kind
    if kind == _CHUNKED:
        return 0, int(config.attention_chunk_size)
    if kind == _SLIDING or call.window:
        return call.window or int(config.sliding_window), 0
    return 0, 0
