"""Recurrent states: what a layer holds of all positions, in place of keys and values.

transformers mixes positions by two things beside attention: a causal convolution of each channel,
and a matrix of each head that every token decays and adds to. The functions of its models are
stated here by these two (`Mixing`), each as its paper has it; `probe/states.py` confirms them by
numbers. A trace has markers in their places.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.onnx import ops as onnx_ops

from snapexport.graphs.markers import CAUSAL_CONV, LINEAR_ATTENTION, TRACE_DOMAIN

CONVOLUTION = "causal_conv1d_fn"


class Recurrence(NamedTuple):
    """The matrix S [dk,dv] of each of H value heads, of which G query and key heads have H / G.

    S' = exp(decay) S, then S = S' + key (beta (value - S'^T key))^T, or without beta
    S = S' + key value^T; the output [B,C,H,dv] is scale S^T query. query and key [B,C,G,dk], value
    [B,C,H,dv], decay [B,C,H] or [B,C,H,dk], beta [B,C,H]. All float32.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    beta: Tensor | None
    scale: float


class Mixing(Protocol):
    """The two ways to mix positions.

    convolve: states [B,D,C] by weights [D,1,k] and biases [D], each position with the k - 1 before.
    recur: the output of a recurrence that begins with zeros.
    """

    def convolve(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def recur(self, one: Recurrence) -> Tensor: ...


def _convolution(
    mixing: Mixing,
    modeling: Any,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    mixed = mixing.convolve(hidden_states.to(weight.dtype), weight.unsqueeze(1), bias)
    mixed = mixed if activation is None else modeling.ACT2FN[activation](mixed)
    return mixed.to(hidden_states.dtype)


def _delta_rule(
    mixing: Mixing,
    modeling: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Gated DeltaNet (arXiv 2412.06464), and Kimi's with a decay of each channel (2510.26692)."""
    dtype, scale = query.dtype, query.shape[-1] ** -0.5
    query, key = query.float(), key.float()
    if use_qk_l2norm_in_kernel:
        query, key = (modeling.l2norm(one, dim=-1, eps=1e-6) for one in (query, key))
    one = Recurrence(query, key, value.float(), g.float(), beta.float(), scale)
    return mixing.recur(one).to(dtype), None


def _mamba2(
    mixing: Mixing,
    modeling: Any,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> Tensor:
    """State space duality (arXiv 2405.21060): C are the queries, B the keys."""
    step = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    step = (functional.softplus(step) if dt_softplus else step).clamp(*dt_limit).float()
    value = hidden_states.float()
    added, decay = value * step[..., None], A.float() * step
    mixed = mixing.recur(Recurrence(C.float(), B.float(), added, decay, beta=None, scale=1.0))
    return mixed if D is None else mixed + D[:, None] * value


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    CONVOLUTION: _convolution,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
}
"""transformers' functions in the modules of its models, as they are called without a cache."""


@contextmanager
def states_replaced(modeling: Any, mixing: Mixing) -> Iterator[None]:
    """In this block a model's functions mix by `mixing`."""
    usual = {name: getattr(modeling, name) for name in FUNCTIONS if hasattr(modeling, name)}

    def restate(name: str) -> Callable[..., Any]:
        return lambda *given, **named: FUNCTIONS[name](mixing, modeling, *given, **named)

    for name in usual:
        setattr(modeling, name, restate(name))
    try:
        yield
    finally:
        for name, function in usual.items():
            setattr(modeling, name, function)


class Plain:
    """The definition, a token at a time."""

    def convolve(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padded = functional.pad(states, (weight.shape[-1] - 1, 0))
        return functional.conv1d(padded, weight, bias, groups=weight.shape[0])

    def recur(self, one: Recurrence) -> Tensor:
        query, key, value, decay, beta, scale = one
        shared = value.shape[2] // key.shape[2]
        query, key = (states.repeat_interleave(shared, 2) for states in (query, key))
        decay = decay if decay.ndim == key.ndim else decay[..., None]
        state = value.new_zeros(value.shape[0], value.shape[2], key.shape[-1], value.shape[-1])
        outputs = []
        for place in range(value.shape[1]):
            state = state * decay[:, place, :, :, None].exp()
            change = value[:, place]
            if beta is not None:
                held = (state * key[:, place, :, :, None]).sum(-2)
                change = (change - held) * beta[:, place, :, None]
            state = state + key[:, place, :, :, None] * change[:, :, None]
            outputs.append(scale * (state * query[:, place, :, :, None]).sum(-2))
        return torch.stack(outputs, 1)


class OwnRow:
    """Mixes nothing: a function of each position's own row, by which other mixing shows."""

    def convolve(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        mixed = states * weight.sum((1, 2))[:, None]
        return mixed if bias is None else mixed + bias[:, None]

    def recur(self, one: Recurrence) -> Tensor:
        query, key, value, decay, beta, scale = one
        shared = value.shape[2] // key.shape[2]
        weight = (query * key).sum(-1).repeat_interleave(shared, 2) * scale
        gates = decay.exp() if decay.ndim == weight.ndim else decay.exp().mean(-1)
        weight = weight * gates * (1 if beta is None else beta)
        return weight.tanh()[..., None] * value


class StateMarkers:
    """A `Mixing` of markers. place: of the layer that runs, which each marker holds."""

    def __init__(self) -> None:
        self.place = -1

    @classmethod
    def of(cls, layers: Any) -> "StateMarkers":
        """The markers for a list of layers, whose forwards say their place from now on."""
        markers = cls()
        for name, layer in layers.named_children():
            layer.register_forward_pre_hook(markers._entering(int(name)))
        return markers

    def _entering(self, place: int) -> Any:
        def enter(*_: Any) -> None:
            self.place = place

        return enter

    def convolve(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        inputs = (states, weight) if bias is None else (states, weight, bias)
        return self._mark(CAUSAL_CONV, inputs, states)

    def recur(self, one: Recurrence) -> Tensor:
        gates = (one.decay,) if one.beta is None else (one.decay, one.beta)
        inputs = (one.query, one.key, one.value, *gates)
        return self._mark(LINEAR_ATTENTION, inputs, one.value, scale=one.scale)

    def _mark(self, op: str, inputs: tuple[Tensor, ...], like: Tensor, **more: float) -> Tensor:
        return onnx_ops.symbolic(
            f"{TRACE_DOMAIN}::{op}",
            inputs,
            {"layer": self.place, **more},
            dtype=like.dtype,
            shape=like.shape,
            version=1,
        )
