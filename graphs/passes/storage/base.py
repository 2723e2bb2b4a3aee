"""Protocol of a storage of keys and values."""

from typing import NamedTuple, Protocol

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from snapexport.contract import names
from snapexport.graphs.passes.base import fresh, node


class States(NamedTuple):
    """Inputs of an attention: query [B,H,C,D], key and value [B,Hkv,C,D]."""

    query: gs.Tensor
    key: gs.Tensor
    value: gs.Tensor


class Prompt(NamedTuple):
    """Input of a compression: key and value [1,Hkv,T,D], length int64 [1]."""

    key: gs.Tensor
    value: gs.Tensor
    length: gs.Tensor


class Storage(Protocol):
    """One way to hold keys and values."""

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        """A decoded token's states as attention to such a cache takes them."""
        ...

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        """What attention to such a cache puts out, of which `out` [B,1,H,D] is made."""
        ...

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        """The outputs for what is kept of a prompt: key and value, [1,Hkv,S,D] each."""
        ...


def cast(graph: gs.Graph, states: gs.Tensor, dtype: DTypeLike) -> gs.Variable:
    """The same numbers in another type."""
    (out,) = node(
        graph,
        "Cast",
        [states],
        [gs.Variable(fresh(graph, "held"), dtype, states.shape)],
        to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
    )
    return out


def as_present(layer: int, states: list[gs.Variable]) -> list[gs.Variable]:
    """Key and value under the names of the graph's outputs."""
    key, value = states
    key.name, value.name = names.present_key(layer), names.present_value(layer)
    return states
