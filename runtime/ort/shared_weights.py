"""Lends mapped weights to ONNX Runtime's sessions, so that all graphs of a build share one map.

Each session would map the files anew: a page that five graphs read then counts five times in the
memory of the process. A weight that can't be lent is left to ONNX Runtime, which reads it itself:
also each vector, since ONNX Runtime 1.32 gives a bias another shape where it moves a transpose
over a sum, and then takes the lent one in its old shape.
"""

from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.contract.manifest import REBUILD
from snapexport.files.untrusted import GRAPH_BYTES, read_bytes
from snapexport.runtime.engine.graph_file import (
    MappedWeights,
    Message,
    external_weights,
    read_model,
    span_of,
)

_TYPES: dict[int, type[np.generic]] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
}
"""NumPy's types by onnx.TensorProto's numbers: those that an OrtValue takes of an array."""


class SharedWeights:
    """The weights of one build. They have to last as long as the sessions."""

    def __init__(self, known: Collection[Path]) -> None:
        """known: the build's weight files. A graph may name no other one here."""
        self._known = frozenset(known)
        self._mapped = MappedWeights()
        self._values: list[Any] = []

    def lend(self, graph: Path, options: Any) -> None:
        """Put the graph's weights into a session's options, before it is opened."""
        from onnxruntime import OrtValue

        for name, array in self._arrays(graph):
            value = OrtValue.ortvalue_from_numpy(array)  # of the same memory, on the CPU
            options.add_initializer(name, value)
            self._values.append((array, value))  # the session holds only its address

    def leave_to_the_disk(self) -> None:
        """Free the memory of what sessions have rearranged. What is read again is mapped again."""
        self._mapped.leave_to_the_disk()

    def _arrays(self, graph: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        try:
            model = read_model(read_bytes(graph, GRAPH_BYTES, REBUILD))
        except ValueError:  # its session says what is wrong
            return
        for tensor in external_weights(model.graph):
            array = self._array(tensor, graph.parent)
            if array is not None:
                yield tensor.name, array

    def _array(self, tensor: Message, folder: Path) -> np.ndarray[Any, Any] | None:
        """A matrix in mapped memory; None: it is a vector, or not of a known file, type or size."""
        kind = _TYPES.get(tensor.data_type)
        try:
            span, shape = span_of(tensor, folder), tuple(tensor.dims)
            if kind is None or len(shape) < 2 or span.file not in self._known:
                return None
            if min(shape, default=1) < 1 or prod(shape) * np.dtype(kind).itemsize != span.nbytes:
                return None
            return self._mapped.bytes_of(span).view(kind).reshape(shape)
        except (OSError, ValueError, KeyError):
            return None
