"""Computes the buffers that no checkpoint holds, so that they become constants of the graph.

The model's own `_init_weights` does, as after loading: RoPE's frequencies, an embedding's factor.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from snapexport.errors import UserError
from snapexport.exporter.architectures.fields import LONGROPE

_UNSET = -12345
"""What integers hold until they are computed."""


def compute_buffers(model: Any) -> None:
    """Give a fake model real buffers where a checkpoint holds none. Raises UserError."""
    for path, module in list(model.named_modules()):
        own = [name for name in module._non_persistent_buffers_set if _is_buffer(module, name)]
        if not own:
            continue
        for name in own:
            module._buffers[name] = _unset(module._buffers[name])
        for owner in _around(path):
            with torch.no_grad():
                _nearest_model(model, owner)._init_weights(model.get_submodule(owner))
            if not any(_is_unset(module._buffers[name]) for name in own):
                break
        for name in own:
            if _is_unset(module._buffers[name]):
                module._buffers[name] = _of_constructor(model, module, path, name)
    for module in model.modules():
        if getattr(module, "rope_type", None) == LONGROPE:
            module.rope_type = "default"  # both sets are the same: nothing is to be chosen


def _around(path: str) -> Iterator[str]:
    """The module itself and those around it, any of which may initialize it, from inside."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _nearest_model(model: Any, path: str) -> Any:
    """The innermost of transformers' models that a module is in, which initializes it."""
    found = model
    for end in [place for place, letter in enumerate(path) if letter == "."] + [len(path)]:
        inner = model.get_submodule(path[:end])
        found = inner if hasattr(inner, "_init_weights") else found
    return found


def _is_buffer(module: nn.Module, name: str) -> bool:
    return module._buffers.get(name) is not None


def _unset(buffer: Tensor) -> Tensor:
    value = math.nan if buffer.dtype.is_floating_point else _UNSET
    value = False if buffer.dtype == torch.bool else value
    return torch.full(tuple(buffer.shape), value, dtype=buffer.dtype)


def _is_unset(buffer: Tensor) -> bool:
    if buffer.dtype.is_floating_point:
        return bool(buffer.isnan().any())
    return buffer.dtype == torch.bool or bool((buffer == _UNSET).any())


def _of_constructor(model: Any, module: Any, path: str, name: str) -> Tensor:
    """The buffer of a further module of the class."""
    config = getattr(module, "config", None) or model.config
    for given in ((config,), (config, getattr(module, "layer_idx", 0)), ()):
        try:
            buffer = type(module)(*given)._buffers[name]
        except Exception:  # of other arguments
            continue
        if isinstance(buffer, Tensor):
            return buffer
    raise UserError(
        f"the model computes {path}.{name} in a way of its own", "this model cannot be built"
    )
