"""Gives a graph its recurrent states: as inputs and outputs, or from nothing in a single shot.

Causal depthwise convolution after a state: the last columns of what came before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import CACHE_DOMAIN, CAUSAL_CONV, LINEAR_ATTENTION, TRACE_DOMAIN
from snapexport.graphs.method import MethodSurgery
from snapexport.graphs.passes.base import (
    Pass,
    computed_range,
    cut,
    fresh,
    graph_input,
    int64s,
    markers,
    node,
)
from snapexport.graphs.passes.chunks import taken_tokens
from snapexport.graphs.recipe import Recipe, Size
from snapexport.methods.states.spec import past_conv, past_matrix


def causal_conv(
    graph: gs.Graph,
    x: gs.Tensor,
    weight: gs.Tensor,
    bias: gs.Tensor | None,
    past: gs.Tensor,
    valid: gs.Tensor | None,
    present: gs.Tensor,
) -> gs.Tensor:
    """The convolution of past [B,D,k-1] and x [B,D,C], with weight [D,1,k] and bias [D]: [B,D,C].

    present: becomes the last k - 1 columns before x's column `valid`, an int64 [1]; None: of all.
    It may have the buffer of `past` in ONNX Runtime, which joins them first. An engine's kernel
    may write the one while it reads the other.
    """
    _, channels, columns = x.shape
    shape = (*x.shape[:2], columns + past.shape[2])
    joined = gs.Variable(fresh(graph, "joined"), x.dtype, shape)
    node(graph, "Concat", [past, x], [joined], axis=2)
    _keep(graph, joined, columns, valid, present)
    out = gs.Variable(fresh(graph, "convolved"), x.dtype, x.shape)
    if columns == 1:
        return _one_column(graph, joined, weight, bias, out)
    inputs = [joined, weight, *([] if bias is None else [bias])]
    return node(graph, "Conv", inputs, [out], group=channels)[0]


def _keep(
    graph: gs.Graph, joined: gs.Tensor, columns: int, valid: gs.Tensor | None, present: gs.Tensor
) -> None:
    end = joined.shape[2]
    if valid is None:
        node(graph, "Slice", [joined, *(int64s(graph, n) for n in (columns, end, 2))], [present])
        return
    # Not a Slice: its size would depend on values of the graph's inputs.
    (index,) = node(graph, "Add", [valid, computed_range(graph, 0, end - columns)])
    node(graph, "Gather", [joined, index], [present], axis=2)


def _one_column(
    graph: gs.Graph,
    joined: gs.Tensor,
    weight: gs.Tensor,
    bias: gs.Tensor | None,
    out: gs.Tensor,
) -> gs.Tensor:
    """Products and sums: Conv takes four times as long in ONNX Runtime.

    The bias is one of them: OpenVINO 2026.4 adds another channel's to sums of a batch.
    """
    batch, channels, width = joined.shape
    (rows,) = node(graph, "Reshape", [weight, int64s(graph, 1, channels, width)])
    (products,) = node(graph, "Mul", [joined, rows])
    if bias is not None:
        (column,) = node(graph, "Reshape", [bias, int64s(graph, 1, channels, 1)])
        each = node(graph, "Expand", [column, int64s(graph, batch, channels, 1)])
        (products,) = node(graph, "Concat", [products, *each], axis=2)
    return node(graph, "ReduceSum", [products, int64s(graph, 2)], [out], keepdims=1)[0]


_OPERATORS = CAUSAL_CONV, LINEAR_ATTENTION


@dataclass(frozen=True)
class RecurrentStates:
    """States [B,...] of each layer that has some, which a step's tokens change.

    valid: finds how many tokens of a row are taken, int64 [1]; None: all. The others do not
    change the states. voters: most tokens after these whose outputs are as if the text went on with
    them. begins: rows begin with states of zeros, and no input holds them.
    """

    valid: Callable[[gs.Graph], gs.Tensor] | None = None
    voters: int = 0
    begins: bool = False

    def apply(self, graph: gs.Graph) -> None:
        convolutions, recurrences = (markers(graph, TRACE_DOMAIN, op) for op in _OPERATORS)
        if not (convolutions or recurrences):
            return
        valid = self.valid(graph) if self.valid else None
        for layer, marker in convolutions:
            self._convolve(graph, layer, marker, valid)
        voters = _Voters(graph, valid, self.voters) if valid and self.voters else None
        for layer, marker in recurrences:
            self._recur(graph, layer, marker, valid, voters)

    def _convolve(
        self, graph: gs.Graph, layer: int, marker: gs.Node, valid: gs.Tensor | None
    ) -> None:
        (states, weight, *bias), (out,) = cut(graph, marker)
        shape = (*states.shape[:2], weight.shape[-1] - 1)
        past, present = self._state(graph, past_conv(layer), states, shape)
        given = bias[0] if bias else None
        mixed = causal_conv(graph, states, weight, given, past, valid, present)
        node(graph, "Identity", [mixed], [out])

    def _recur(
        self,
        graph: gs.Graph,
        layer: int,
        marker: gs.Node,
        valid: gs.Tensor | None,
        voters: "_Voters | None",
    ) -> None:
        given, (out,) = cut(graph, marker)
        query, key, value, *gates = given
        batch, tokens, heads, width = value.shape
        shape = (batch, heads, key.shape[-1], width)
        past, present = self._state(graph, past_matrix(layer), value, shape)
        recurrence = _Recurrence(graph, layer, marker.attrs["scale"])
        if valid is not None:
            real = _real(graph, tokens, valid)
            key, *gates = (_zero_unless(graph, real, one) for one in (key, *gates))
        own = voters.own(out) if voters else out
        recurrence.write([query, key, value, *gates], past, own, present)
        if voters:
            voters.write(recurrence, given, present, own, out)

    def _state(
        self, graph: gs.Graph, name: str, like: gs.Tensor, shape: tuple[int, ...]
    ) -> tuple[gs.Variable, gs.Variable]:
        """A state before and after the step, of the type of `like`."""
        present = gs.Variable(names.present_of(name), like.dtype, shape)
        graph.outputs.append(present)
        if not self.begins:
            graph.inputs.append(gs.Variable(name, like.dtype, shape))
            return graph.inputs[-1], present
        zeros = gs.Variable(fresh(graph, "zeros"), like.dtype, shape)
        zero = gs.Constant(fresh(graph, "zero"), np.zeros(1, np.float32))  # NumPy has no bf16
        expanded = node(graph, "Expand", [zero, int64s(graph, *shape)])
        node(graph, "CastLike", [*expanded, like], [zeros])
        return zeros, present


@dataclass(frozen=True)
class _Recurrence:
    """Appends a layer's recurrence: of all its tokens, or of those that vote."""

    graph: gs.Graph
    layer: int
    scale: float

    def write(
        self, given: list[gs.Tensor], past: gs.Tensor, out: gs.Tensor, present: gs.Tensor
    ) -> None:
        """given: query, key, value, decay and what there is of beta."""
        beta = [] if len(given) > 4 else [gs.Variable.empty()]
        attributes = {"layer": self.layer, "scale": self.scale}
        inputs, outputs = [*given, *beta, past], [out, present]
        node(self.graph, LINEAR_ATTENTION, inputs, outputs, domain=CACHE_DOMAIN, **attributes)


class _Voters:
    """Tokens after those that are taken: their outputs go on from the state that these leave.

    A second recurrence, only of them, begins with that state, and what it leaves is forgotten.
    """

    def __init__(self, graph: gs.Graph, valid: gs.Tensor, count: int) -> None:
        self._graph, self._count = graph, count
        tokens: int = graph_input(graph, names.INPUT_IDS).shape[1]
        row = computed_range(graph, 0, tokens)
        (behind,) = node(graph, "Add", [valid, computed_range(graph, 0, count)])
        (self._rows,) = node(graph, "Min", [behind, int64s(graph, tokens - 1)])
        (past_own,) = node(graph, "Sub", [row, valid])
        (place,) = node(graph, "Add", [past_own, int64s(graph, tokens)])
        (of_voters,) = node(graph, "Min", [place, int64s(graph, tokens + count - 1)])
        (is_own,) = node(graph, "Less", [row, valid])
        (self._source,) = node(graph, "Where", [is_own, row, of_voters])

    def own(self, out: gs.Tensor) -> gs.Variable:
        """For outputs of the tokens that are taken."""
        return gs.Variable(fresh(self._graph, "taken"), out.dtype, out.shape)

    def write(
        self,
        recurrence: _Recurrence,
        given: list[gs.Tensor],
        state: gs.Tensor,
        own: gs.Tensor,
        out: gs.Tensor,
    ) -> None:
        """Append the voters' outputs, and `out` of both. state: after the tokens that are taken."""
        graph, (batch, _, *width) = self._graph, out.shape
        voting = gs.Variable(fresh(graph, "voting"), out.dtype, (batch, self._count, *width))
        after = gs.Variable(fresh(graph, "after_voters"), state.dtype, state.shape)
        recurrence.write([self._voting(one) for one in given], state, voting, after)
        both = node(graph, "Concat", [own, voting], axis=1)
        node(graph, "Gather", [*both, self._source], [out], axis=1)

    def _voting(self, states: gs.Tensor) -> gs.Variable:
        """The voters' rows of states [B,C,...]."""
        batch, _, *rest = states.shape
        rows = gs.Variable(
            fresh(self._graph, "of_voters"), states.dtype, (batch, self._count, *rest)
        )
        return node(self._graph, "Gather", [states, self._rows], [rows], axis=1)[0]


def _real(graph: gs.Graph, tokens: int, valid: gs.Tensor) -> gs.Tensor:
    """Bool [C,1], whether a token is real."""
    (real,) = node(graph, "Less", [computed_range(graph, 0, tokens), valid])
    return node(graph, "Unsqueeze", [real, int64s(graph, 1)])[0]


def _zero_unless(graph: gs.Graph, real: gs.Tensor, states: gs.Tensor) -> gs.Variable:
    """States [B,C,H] or [B,C,H,D], zero where a token isn't real."""
    mask = real
    if len(states.shape) == 4:
        (mask,) = node(graph, "Unsqueeze", [real, int64s(graph, 2)])
    zero = gs.Constant(fresh(graph, "zero"), np.zeros((), np.float32))
    kept = gs.Variable(fresh(graph, "real"), states.dtype, states.shape)
    return node(graph, "Where", [mask, states, zero], [kept])[0]


class StatesSurgery(MethodSurgery):
    """Prefill and extend take some tokens of a chunk, decode all of its step."""

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        geometry = recipe.geometry
        if kind == "prefill" and geometry.is_single_shot(size.tokens):
            length = partial(graph_input, name=names.PROMPT_LENGTH)
            return (RecurrentStates(length, begins=True),)
        if kind == "prefill":
            return (RecurrentStates(partial(graph_input, name=names.CHUNK_LENGTH)),)
        if kind == "extend":  # a short chunk may have as many voters as a whole one
            voters = geometry.vote.L_obs if geometry.votes else 0
            return (RecurrentStates(taken_tokens, voters=voters),)
        return (RecurrentStates(),)


SURGERY = StatesSurgery()
