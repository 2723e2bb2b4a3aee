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
from snapexport.graphs.passes.base import fresh, node
from snapexport.methods import table


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
        """The same for only the queries, after `held` of the layer that writes the cache."""
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
        """A chunk's keys and values, stored after those that are cached."""
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


def storage_of(dtype: CacheDType | None) -> Storage:
    """The storage for a `GraphOptions.cache_dtype`. A method may bring one."""
    if dtype is None:
        return Storage()
    if dtype == "fp16":
        return Float16()
    method = next(method for method in table.METHODS if method.stores == dtype)
    storage: Storage = method.part("surgery").storage
    return storage


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
