"""Makes transformers' model of a decoder, without memory for weights, and runs it.

Logits are computed by the head that a model has: the class's own forward runs on given hidden
states. So a factor, a soft cap or a bias of logits is right by construction. Runs no foreign code.
"""

import copy
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from transformers.modeling_outputs import BaseModelOutputWithPast

from snapexport.errors import UserError, first_line
from snapexport.exporter.model.decoder import Decoder, Names
from snapexport.exporter.quiet import quiet
from snapexport.exporter.read.config_fields import CORRECT, DYNAMIC, LONGROPE

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_LISTS = ("layers", "layer", "h", "blocks")
"""transformers' names of a decoder's list of layers."""
_USE_A_DECODER = "use a causal language model"
_WARNS_OF_PADS = "warn_if_padding_and_no_attention_mask"


def make_model(
    config: "PretrainedConfig",
    whole: "PretrainedConfig | None" = None,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """The model of a text config; with `whole`, the language part of that vision-language model.

    Under whatever device or mode is set. Raises what transformers' constructors raise.
    """
    from transformers.initialization import no_init_weights

    # Some look at the numbers that they initialize, which fake tensors don't have.
    with no_init_weights():
        model = _construct(copy.deepcopy(config), copy.deepcopy(whole), dtype)
    model.tie_weights()
    for module in model.modules():
        if hasattr(module, _WARNS_OF_PADS):  # it reads token ids, which a trace doesn't have
            setattr(module, _WARNS_OF_PADS, _do_nothing)
    return model


def _construct(
    config: "PretrainedConfig", whole: "PretrainedConfig | None", dtype: torch.dtype | None
) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if whole is None:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    whole.text_config = config
    whole._attn_implementation = config._attn_implementation
    make: Any = AutoModelForImageTextToText.from_config
    model = with_text_alone(config, lambda: make(whole, dtype=dtype, trust_remote_code=False))
    leave_text(model)
    return model


def with_text_alone(text: "PretrainedConfig", make: Callable[[], Any]) -> Any:
    """Make a vision-language model by `make`, whose language model is of the config `text`.

    Encoders of images are left out where they need a library that isn't there.
    """
    from transformers import AutoModel

    try:
        return make()
    except ImportError:
        auto: Any = AutoModel
        usual = auto.from_config

        def from_config(config: "PretrainedConfig", **given: Any) -> Any:
            is_text = config.model_type == text.model_type
            return usual(config, **given) if is_text else nn.Identity()

        auto.from_config = from_config
        try:
            return make()
        finally:
            auto.from_config = usual


def leave_text(model: Any) -> None:
    """Drop what text never passes through, whose weights are not built."""
    decoder = path_of_decoder(model)
    kept = decoder, path_of(model, model.get_output_embeddings())
    for path in ("", *_above(decoder)):
        holder, stem = model.get_submodule(path), path and f"{path}."
        for name, _ in list(holder.named_children()):
            if not any(f"{one}.".startswith(f"{stem}{name}.") for one in kept):
                delattr(holder, name)


def causal_language_model(model: Any, names: Names) -> Any:
    """The part that makes logits: the model, or a vision-language model's part with a head."""
    return model.get_submodule(_with_head(names))


def _with_head(names: Names) -> str:
    """The path of the innermost module that has both the decoder and the head."""
    both = zip(names.decoder.split("."), names.head.split("."), strict=False)
    return ".".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))


def _above(path: str) -> list[str]:
    """The paths of the modules around a module, from outside."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def settle_ropes(model: Any) -> None:
    """End the choice of frequencies by length: there is one set, which the RoPEs have now."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):
            module.rope_type = {name: _without_lengths(one) for name, one in kind.items()}
        elif kind is not None:
            module.rope_type = _without_lengths(kind)


def _without_lengths(rope_type: str | None) -> str | None:
    return "default" if rope_type in (DYNAMIC, LONGROPE) else rope_type


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def model_on_meta(decoder: Decoder, dtype: torch.dtype | None = None) -> Any:
    """The decoder's model on the meta device. Raises UserError."""
    with in_users_words(), torch.device("meta"):
        model = make_model(decoder.config, decoder.whole, dtype=dtype)
    keep_layers(model, decoder.names.decoder, decoder.names.layers, decoder.depth)
    return model


@contextmanager
def in_users_words(
    wrong: str = "transformers cannot make the model of config.json", hint: str = CORRECT
) -> Iterator[None]:
    """Whatever a constructor raises with values that it never expected is the config's fault."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{wrong}: {type(error).__name__}: {first_line(error)!s:.200}", hint
        ) from None


def hidden_states_of(decoder: Any, input_ids: Any, position_ids: Any) -> Any:
    """The hidden states [B,C,E] that a model's decoder makes of tokens [B,C] at positions [B,C]."""
    given = {"input_ids": input_ids, "position_ids": position_ids, "use_cache": False}
    if "logits_to_keep" in inspect.signature(decoder.forward).parameters:
        given["logits_to_keep"] = None  # Gemma 4 would leave out tokens
    with compute_constants():
        return decoder(**given).last_hidden_state


def path_of_decoder(model: Any) -> str:
    """The path of the module that makes hidden states of tokens: it has layers and the embedding.

    Raises UserError for a model without one.
    """
    for path in reversed(_above(path_of(model, model.get_input_embeddings()))):
        if _lists_of_layers(model.get_submodule(path)):
            return path
    raise UserError("the model has no layers beside an embedding of tokens", _USE_A_DECODER)


def path_of(model: Any, part: Any) -> str:
    """The path of a part of the model, such as its head. Raises UserError if it has no such."""
    found = next((path for path, module in model.named_modules() if module is part and path), None)
    if found is None:
        raise UserError("the model has no embedding of tokens, or no head", _USE_A_DECODER)
    return str(found)


def _lists_of_layers(module: Any) -> list[str]:
    return [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) and name.split(".")[-1] in _LISTS
    ]


def path_of_layers(model: Any, decoder: str) -> str:
    """The path of the decoder's list of layers. Raises UserError for none, or several."""
    lists = _lists_of_layers(model.get_submodule(decoder))
    least = min((name.count(".") for name in lists), default=0)
    outer = [name for name in lists if name.count(".") == least]
    if len(outer) != 1:
        raise UserError(
            f"the model has {len(outer)} lists of layers",
            "only decoders whose layers follow one another can be built",
        )
    return f"{decoder}.{outer[0]}"


def modeling_of(model: Any, decoder: str) -> ModuleType:
    """The module of transformers in which the decoder's functions are."""
    return sys.modules[type(model.get_submodule(decoder)).__module__]


def keep_layers(model: Any, decoder: str, layers: str, depth: Sequence[int]) -> None:
    """Leave some of a model's layers, by their indices, which they keep. One may come twice."""
    listed, config = model.get_submodule(layers), model.get_submodule(decoder).config
    if list(depth) == list(range(len(listed))):
        return
    kept: list[nn.Module] = []
    for index in depth:
        layer = listed[index]
        kept.append(copy.deepcopy(layer) if any(layer is other for other in kept) else layer)
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == len(listed):  # of each layer, such as its type
            setattr(config, name, [value[index] for index in depth])
    config.num_hidden_layers = len(kept)
    del listed[:]
    listed.extend(kept)


@contextmanager
def compute_constants() -> Iterator[None]:
    """In this block erfinv of a constant is a number, since ONNX has no such operator.

    Distributions don't look at their parameters, which have no values.
    """
    erfinv, validates = torch.erfinv, Distribution._validate_args
    torch.erfinv = _erfinv  # type: ignore[assignment]
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.erfinv = erfinv
        Distribution.set_default_validate_args(validates)


def _erfinv(value: Tensor) -> Tensor:
    """erfinv of one number."""
    if value.is_meta:
        return torch.empty_like(value)
    quantile = NormalDist().inv_cdf((float(value) + 1) / 2)
    return value.new_full(value.shape, quantile / math.sqrt(2))


_BARRED = "snapexport_barred"


class _States(BaseModelOutputWithPast):
    """The output of a decoder. Some heads look for more, and find nothing."""

    def __getattr__(self, _: str) -> None:
        return None


def logits_of(model: Any, decoder: Decoder, hidden_states: Tensor) -> Tensor:
    """Hidden states [B,C,E] -> logits float32 [B,C,V], or [B,V] for one token each.

    Those of tokens that are never sampled are the least that float32 holds.
    """
    path, with_head = decoder.names.decoder, causal_language_model(model, decoder.names)
    # Whichever the head's module calls: that of a vision-language model has the decoder inside.
    around, outside = (*_above(path), path), _with_head(decoder.names)
    inside = [model.get_submodule(one) for one in around if len(one) > len(outside)]
    usual, calls = [one.forward for one in inside], 0

    def states(*_: Any, **__: Any) -> _States:
        nonlocal calls
        calls += 1
        return _States(last_hidden_state=hidden_states)

    for one in inside:
        one.forward = states
    try:
        token = torch.zeros(1, 1, dtype=torch.int64)  # no forward after the decoder reads it
        logits: Tensor = with_head(input_ids=token, use_cache=False).logits
    finally:
        for one, forward in zip(inside, usual, strict=True):
            one.forward = forward
    if calls != 1:
        raise UserError(
            "the model's head computes logits of something else than its decoder's states",
            "only a head that follows the decoder can be built",
        )
    logits = (logits[:, 0] if hidden_states.shape[1] == 1 else logits).float()
    return logits + getattr(model, _BARRED) if decoder.never_sampled else logits


def bar_tokens(model: Any, decoder: Decoder) -> None:
    """Give a model what `logits_of` adds to the logits of tokens that are never sampled."""
    if decoder.never_sampled:
        added = torch.zeros(decoder.config.vocab_size)
        added[list(decoder.never_sampled)] = torch.finfo(torch.float32).min
        model.register_buffer(_BARRED, added, persistent=False)


def parameters(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's parameters, by their names in it; nothing is allocated.

    Buffers that a checkpoint holds count too, such as a router's bias (DeepSeek-V3).
    """
    state = model_on_meta(decoder).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
