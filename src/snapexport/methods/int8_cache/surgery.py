"""Int8Scale and Int8Rows: keys and values in 8 bits, with a scale for each KV head and channel.

Int8Scale: states [1,Hkv,T,D], length int64 [1] -> scale float32 [1,Hkv,1,D].
    Attributes: parts (ints, [n]): n channels, D / n apart, share a scale. 2 for keys: RoPE turns
    each pair (i, i + D/2) by an angle that depends on the position, and leaves its magnitude.
Int8Rows: states [B,Hkv,C,D], scale [B,Hkv,1,D] -> rows int8 [B,Hkv,C,D].

The scale is calibrated only on the prompt's L positions; larger magnitudes of later tokens are
clipped. With c the channel's and h the KV head's largest magnitude in the prompt:

    w = min(L / ENOUGH, 1)
    scale = MARGIN * max((1 + ROOM / L) * (w * c + (1 - w) * h), LEAST * h) / 127

A short prompt is a poor sample of a channel, hence the head's share and the wider range. With them
prompts of 1 to 4 tokens change decode's logits by 2 to 4 % of their deviation on the bundled
checkpoint, as little as long prompts; without them, by a third.
"""

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from snapexport.contract import names
from snapexport.graphs.functions.function import Function
from snapexport.graphs.method import MethodSurgery
from snapexport.graphs.passes.base import call, fresh, graph_input, graph_output, int64s, node
from snapexport.graphs.passes.storage import Chunk, Prompt, States, Storage, as_present, cast
from snapexport.methods.int8_cache.spec import (
    past_key_scale,
    past_value_scale,
    present_key_scale,
    present_value_scale,
)

_ROTATED, _UNROTATED = 2, 1
"""Int8Scale's `parts` for keys, which RoPE rotates in pairs, and for values."""

ENOUGH = 64
"""Prompt length from which a channel's scale depends only on that channel."""

MARGIN = 1.1
"""Range beyond the largest magnitude of a long prompt."""

ROOM = 4.0
"""A prompt of L tokens gets 1 + ROOM / L times that range."""

LEAST = 1 / 32
"""A channel's smallest range as a part of the head's: a channel may be zero in a whole prompt."""

INT8_SCALE = Function(
    "Int8Scale",
    f"""
<domain: "snapexport", opset_import: ["": 24]>
Int8Scale <parts> (states, length) => (scale)
{{
  first = Constant <value_ints = [0]> ()
  position_axis = Constant <value_ints = [2]> ()
  part_axis = Constant <value_ints = [3]> ()
  last_axis = Constant <value_ints = [-1]> ()
  same = Constant <value_ints = [0, 0, 0]> ()
  once = Constant <value_ints = [1, 1, 1]> ()
  n = Constant <value_ints: ints = @parts> ()
  one = Constant <value_float = 1.0> ()
  enough = Constant <value_float = {float(ENOUGH)}> ()
  room = Constant <value_float = {ROOM}> ()
  least = Constant <value_float = {LEAST}> ()
  above_zero = Constant <value_float = 1e-20> ()
  step = Constant <value_float = {MARGIN / 127}> ()

  # The largest magnitude of each channel, or of those that share a scale, in the prompt.
  prompt = Slice (states, first, length, position_axis)
  parts_shape = Concat <axis = 0> (same, n, last_axis)
  in_parts = Reshape (prompt, parts_shape)
  squares = ReduceSumSquare <keepdims = 0> (in_parts, part_axis)
  largest = ReduceMax <keepdims = 1> (squares, position_axis)
  magnitude = Sqrt (largest)
  repeats = Concat <axis = 0> (once, n)
  channel = Tile (magnitude, repeats)
  head = ReduceMax <keepdims = 1> (channel, last_axis)

  # The shorter the prompt, the larger the head's share and the range.
  positions = CastLike (length, channel)
  fraction = Div (positions, enough)
  own_share = Min (fraction, one)
  head_share = Sub (one, own_share)
  own = Mul (channel, own_share)
  common = Mul (head, head_share)
  expected = Add (own, common)
  more = Div (room, positions)
  times = Add (one, more)
  roomy = Mul (expected, times)

  smallest = Mul (head, least)
  range = Max (roomy, smallest, above_zero)
  scale = Mul (range, step)
}}
""",
)

INT8_ROWS = Function(
    "Int8Rows",
    """
<domain: "snapexport", opset_import: ["": 24]>
Int8Rows (states, scale) => (rows)
{
  lowest = Constant <value_float = -127.0> ()
  highest = Constant <value_float = 127.0> ()
  steps = Div (states, scale)
  whole = Round (steps)
  clipped = Clip (whole, lowest, highest)
  rows = Cast <to = 3> (clipped)
}
""",
)


class Int8(Storage):
    """Integers from -127 to 127, with scales for each request, KV head and channel.

    Attention reads the integers: scores are (query * key_scale) . key, and the weighted sum of
    values is multiplied by value_scale. The compress step computes the scales from the prompt, and
    decode passes them through.
    """

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        key_scale = _passed_through(graph, past_key_scale(layer), states.key)
        value_scale = _passed_through(graph, past_value_scale(layer), states.value)
        return States(
            self.query(graph, layer, states.query),
            _rows(graph, states.key, key_scale),
            _rows(graph, states.value, value_scale),
        )

    def query(self, graph: gs.Graph, layer: int, query: gs.Tensor) -> gs.Tensor:
        scaled = gs.Variable(fresh(graph, "scaled"), query.dtype, query.shape)
        _scaled(graph, query, graph_input(graph, past_key_scale(layer)), scaled)
        return scaled

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        unscaled = gs.Variable(fresh(graph, "unscaled"))
        value_scale = graph_input(graph, past_value_scale(layer))
        batch, heads, rows, _ = states.query.shape
        out.shape = (batch, rows, heads, states.value.shape[3])
        if rows == 1:  # [B,H,1,D] and [B,1,H,D] are the same numbers
            _scaled(graph, unscaled, value_scale, out)
            return unscaled
        kv_heads, head_dim = states.value.shape[1], states.value.shape[3]
        groups = int64s(graph, batch, rows, kv_heads, -1, head_dim)
        grouped = node(graph, "Reshape", [unscaled, groups])
        scale = node(graph, "Unsqueeze", [value_scale, int64s(graph, 1)])
        scaled = node(graph, "Mul", [*grouped, *scale])
        node(graph, "Reshape", [*scaled, int64s(graph, *out.shape)], [out])
        return unscaled

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        key, value = kept
        key_scale = _scale(graph, present_key_scale(layer), prompt, prompt.key, _ROTATED)
        value_scale = _scale(graph, present_value_scale(layer), prompt, prompt.value, _UNROTATED)
        held = [_rows(graph, key, key_scale), _rows(graph, value, value_scale)]
        return [*as_present(layer, held), key_scale, value_scale]

    def rows(self, graph: gs.Graph, layer: int, chunk: Chunk) -> list[gs.Variable]:
        """With the scales of what is cached; of an empty cache, with the chunk's own."""
        (is_first,) = node(graph, "Equal", [chunk.cached, int64s(graph, 0)])
        pasts = past_key_scale(layer), past_value_scale(layer)
        states = (chunk.key, _ROTATED), (chunk.value, _UNROTATED)
        rows = []
        for past_name, (one, parts) in zip(pasts, states, strict=True):
            past, present = _scale_input(graph, past_name, one), names.present_of(past_name)
            prompt = Prompt(chunk.key, chunk.value, chunk.length)
            own = _scale(graph, fresh(graph, "scale"), prompt, one, parts)
            scale = gs.Variable(present, np.float32, past.shape)
            node(graph, "Where", [is_first, own, past], [scale])
            graph.outputs.append(scale)
            rows.append(_rows(graph, one, scale))
        return rows

    def read(
        self, graph: gs.Graph, layer: int, stored: list[gs.Variable], dtype: DTypeLike
    ) -> list[gs.Variable]:
        scales = present_key_scale(layer), present_value_scale(layer)
        return [
            _product(graph, cast(graph, states, np.float32), graph_output(graph, scale))
            for states, scale in zip(stored, scales, strict=True)
        ]


def _passed_through(graph: gs.Graph, past: str, states: gs.Tensor) -> gs.Variable:
    """Add a layer's scales as input `past`, float32 [B,Hkv,1,D], and as output of the same values.

    The output has to share the input's buffer.
    """
    scale = _scale_input(graph, past, states)
    present = gs.Variable(names.present_of(past), np.float32, scale.shape)
    graph.outputs.append(present)
    node(graph, "Identity", [scale], [present])
    return scale


def _scale_input(graph: gs.Graph, name: str, states: gs.Tensor) -> gs.Variable:
    batch, kv_heads, _, head_dim = states.shape
    scale = gs.Variable(name, np.float32, (batch, kv_heads, 1, head_dim))
    graph.inputs.append(scale)
    return scale


def _product(graph: gs.Graph, states: gs.Variable, scale: gs.Tensor) -> gs.Variable:
    product = gs.Variable(fresh(graph, "read"), np.float32, states.shape)
    return node(graph, "Mul", [states, scale], [product])[0]


def _scale(
    graph: gs.Graph, name: str, prompt: Prompt, states: gs.Tensor, parts: int
) -> gs.Variable:
    """Compute the scales of a prompt's keys or values."""
    batch, kv_heads, _, head_dim = states.shape
    scale = gs.Variable(name, np.float32, (batch, kv_heads, 1, head_dim))
    call(graph, INT8_SCALE, [states, prompt.length], [scale], parts=[parts])
    return scale


def _rows(graph: gs.Graph, states: gs.Tensor, scale: gs.Tensor) -> gs.Variable:
    """Quantize states [B,Hkv,C,D] to int8."""
    rows = gs.Variable(fresh(graph, "rows"), np.int8, states.shape)
    call(graph, INT8_ROWS, [states, scale], [rows])
    return rows


def _scaled(graph: gs.Graph, heads: gs.Tensor, scale: gs.Tensor, out: gs.Tensor) -> None:
    """Multiply each query head's D numbers by its KV head's scales: heads [B,H,C,D]."""
    batch, kv_heads, _, head_dim = scale.shape
    grouped = node(graph, "Reshape", [heads, int64s(graph, batch, kv_heads, -1, head_dim)])
    scaled = node(graph, "Mul", [*grouped, scale])
    node(graph, "Reshape", [*scaled, int64s(graph, *out.shape)], [out])


class Int8Surgery(MethodSurgery):
    """Compressed caches are stored as integers."""

    storage = Int8()


SURGERY = Int8Surgery()
