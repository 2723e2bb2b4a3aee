"""Stores keys and values of a compressed cache in the model's own type or in fewer bits.

A storage converts queries and new rows before attention, and attention's output after it. The
target's attention operators do not know the storage.
"""

from typing import NamedTuple

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from snapexport.contract import names
from snapexport.files.dtypes import CacheDType
from snapexport.graphs.functions.int8_cache import INT8_ROWS, INT8_SCALE
from snapexport.graphs.passes.base import call, fresh, graph_input, graph_output, int64s, node

_ROTATED, _UNROTATED = 2, 1
"""Int8Scale's `parts` for keys, which RoPE rotates in pairs, and for values."""


class States(NamedTuple):
    """Inputs of attention: query [B,H,C,D], key and value [B,Hkv,C,D]."""

    query: gs.Tensor
    key: gs.Tensor
    value: gs.Tensor


class Prompt(NamedTuple):
    """Input of the compress step: key and value [1,Hkv,T,D], length int64 [1]."""

    key: gs.Tensor
    value: gs.Tensor
    length: gs.Tensor


class Chunk(NamedTuple):
    """Input of an extension: key and value [1,Hkv,C,D]; lengths int64 [1].

    length: valid rows. cached: valid cache slots before the chunk.
    """

    key: gs.Variable
    value: gs.Variable
    length: gs.Tensor
    cached: gs.Tensor


class Storage:
    """Keys and values in the model's own type, and the base of other ways to hold them."""

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        """Convert a decode step's states to the form that attention over such a cache reads."""
        return states

    def query(self, graph: gs.Graph, layer: int, query: gs.Tensor) -> gs.Tensor:
        """The same of queries alone, after `held` of the layer that writes the cache."""
        return query

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        """A tensor for the output of attention over such a cache, and its conversion to `out`.

        out: [B,C,H,D], in the model's type.
        """
        return out

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        """The graph outputs for the compressed key and value in `kept`, [1,Hkv,S,D] each."""
        return as_present(layer, kept)

    def rows(self, graph: gs.Graph, layer: int, chunk: Chunk) -> list[gs.Variable]:
        """A chunk's keys and values, stored behind those that are cached."""
        return [chunk.key, chunk.value]

    def read(
        self, graph: gs.Graph, layer: int, stored: list[gs.Variable], dtype: DTypeLike
    ) -> list[gs.Variable]:
        """Stored keys and values [1,Hkv,N,D] in the model's type."""
        return stored


class Float16(Storage):
    """Keys and values cast to fp16 beside a model in fp32; attention over them is in fp16 too.

    Magnitudes above 65,504 become infinite.
    """

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        return States(*(cast(graph, tensor, np.float16) for tensor in states))

    def query(self, graph: gs.Graph, layer: int, query: gs.Tensor) -> gs.Tensor:
        return cast(graph, query, np.float16)

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        half = gs.Variable(fresh(graph, "attended"))
        node(graph, "CastLike", [half, states.query], [out])
        return half

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        return as_present(layer, [cast(graph, tensor, np.float16) for tensor in kept])

    def rows(self, graph: gs.Graph, layer: int, chunk: Chunk) -> list[gs.Variable]:
        return [cast(graph, states, np.float16) for states in (chunk.key, chunk.value)]

    def read(
        self, graph: gs.Graph, layer: int, stored: list[gs.Variable], dtype: DTypeLike
    ) -> list[gs.Variable]:
        return [cast(graph, states, dtype) for states in stored]


class Int8(Storage):
    """Integers from -127 to 127, with scales for each request, KV head and channel.

    Attention reads the integers: scores are (query * key_scale) . key, and the weighted sum of
    values is multiplied by value_scale. The compress step computes the scales from the prompt, and
    decode passes them through.
    """

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        key_scale = _passed_through(graph, names.past_key_scale(layer), states.key)
        value_scale = _passed_through(graph, names.past_value_scale(layer), states.value)
        return States(
            self.query(graph, layer, states.query),
            _rows(graph, states.key, key_scale),
            _rows(graph, states.value, value_scale),
        )

    def query(self, graph: gs.Graph, layer: int, query: gs.Tensor) -> gs.Tensor:
        scaled = gs.Variable(fresh(graph, "scaled"), query.dtype, query.shape)
        _scaled(graph, query, graph_input(graph, names.past_key_scale(layer)), scaled)
        return scaled

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        unscaled = gs.Variable(fresh(graph, "unscaled"))
        value_scale = graph_input(graph, names.past_value_scale(layer))
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
        key_scale = _scale(graph, names.present_key_scale(layer), prompt, prompt.key, _ROTATED)
        value_scale = _scale(
            graph, names.present_value_scale(layer), prompt, prompt.value, _UNROTATED
        )
        held = [_rows(graph, key, key_scale), _rows(graph, value, value_scale)]
        return [*as_present(layer, held), key_scale, value_scale]

    def rows(self, graph: gs.Graph, layer: int, chunk: Chunk) -> list[gs.Variable]:
        """With the scales of what is cached; of an empty cache, with the chunk's own."""
        (is_first,) = node(graph, "Equal", [chunk.cached, int64s(graph, 0)])
        pasts = names.past_key_scale(layer), names.past_value_scale(layer)
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
        scales = names.present_key_scale(layer), names.present_value_scale(layer)
        return [
            _product(graph, cast(graph, states, np.float32), graph_output(graph, scale))
            for states, scale in zip(stored, scales, strict=True)
        ]


_STORAGES: dict[CacheDType | None, Storage] = {
    None: Storage(),
    "fp16": Float16(),
    "int8": Int8(),
}


def storage_of(dtype: CacheDType | None) -> Storage:
    """The storage for a `GraphOptions.cache_dtype`."""
    return _STORAGES[dtype]


def cast(graph: gs.Graph, states: gs.Tensor, dtype: DTypeLike) -> gs.Variable:
    """Cast `states` to `dtype`."""
    (out,) = node(
        graph,
        "Cast",
        [states],
        [gs.Variable(fresh(graph, "held"), dtype, states.shape)],
        to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
    )
    return out


def as_present(layer: int, states: list[gs.Variable]) -> list[gs.Variable]:
    """Name key and value as the graph's outputs."""
    key, value = states
    key.name, value.name = names.present_key(layer), names.present_value(layer)
    return states


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
