"""One graph in ONNX Runtime, bound once to buffers that never move.

Responsible for how a session is opened, that it is the graph the manifest describes, and that its
inputs and outputs are the very arrays it was given. Knows no cache policy and no slot.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, needs_extra
from snapexport.contract.manifest import REBUILD, GraphEntry, GraphName, TensorSpec

with needs_extra("cpu"):
    import onnxruntime as ort

Buffers = dict[str, NDArray[Any]]

_NUMPY_NAMES = {"float": "float32", "double": "float64"}

# Both would write new copies of weights that otherwise stay in the mapped file.
_COPYING_OPTIMIZERS = ["ConstantFolding", "TransposeOptimizer"]


def buffers_for(entry: GraphEntry, given: Mapping[str, NDArray[Any]] | None = None) -> Buffers:
    """One array for each input and output of a graph: a given one, or one of zeros.

    A cache output shares the array of its input. Zeros, because what masked attention multiplies
    by zero must not be NaN.
    """
    buffers = dict(given or {})
    for spec in (*entry.inputs, *entry.outputs):
        if spec.name not in buffers:
            shared = buffers.get(names.past_of(spec.name))
            buffers[spec.name] = np.zeros(spec.shape, spec.dtype) if shared is None else shared
    return buffers


class Graph:
    """A session whose weights are mapped from their files, shared with the other sessions'.

    `prepack` gives it a rearranged copy of its own instead, which small batches multiply faster.
    """

    def __init__(
        self, build: Build, name: GraphName, threads: int | None, prepack: bool = False
    ) -> None:
        self.entry = build.manifest.graphs[name]
        path, options = build.graph(name), _options(threads, prepack)
        try:
            self._session = ort.InferenceSession(
                path,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_COPYING_OPTIMIZERS,
            )
        except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
            raise UserError(f"ONNX Runtime cannot load {path}: {error}", REBUILD) from error
        _check(path.name, "inputs", self.entry.inputs, self._session.get_inputs())
        _check(path.name, "outputs", self.entry.outputs, self._session.get_outputs())

    def bind(self, buffers: Buffers) -> "BoundGraph":
        """Tie every input and output to the array of its name."""
        return BoundGraph(self._session, self.entry, buffers)


class BoundGraph:
    """A graph and its arrays. Write the inputs, `run`, read the outputs: nothing is copied."""

    def __init__(self, session: Any, entry: GraphEntry, buffers: Buffers) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._buffers = buffers  # ONNX Runtime holds their addresses only
        for spec in entry.inputs:
            self._binding.bind_ortvalue_input(spec.name, self._value(spec))
        for spec in entry.outputs:
            self._binding.bind_ortvalue_output(spec.name, self._value(spec))

    def run(self) -> None:
        """From the input arrays to the output arrays."""
        self._session.run_with_iobinding(self._binding)

    def _value(self, spec: TensorSpec) -> Any:
        array = self._buffers[spec.name]
        assert array.flags.c_contiguous and list(array.shape) == spec.shape, spec.name
        value = ort.OrtValue.ortvalue_from_numpy(array)
        assert value.data_ptr() == array.ctypes.data, f"{spec.name} was copied"
        return value


def _options(threads: int | None, prepack: bool) -> Any:
    if threads is not None and threads < 1:
        raise UserError(f"{threads} threads cannot run anything", "use 1 or more, or leave it out")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    # Threads that spin while they wait take the cores from the other sessions and from the host.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _check(file: str, kind: str, promised: list[TensorSpec], actual: list[Any]) -> None:
    expected = {spec.name: (spec.dtype, spec.shape) for spec in promised}
    found = {node.name: (_numpy_name(node.type), node.shape) for node in actual}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{file} has {found.get(name)} among its {kind} for '{name}', "
                f"the manifest says {expected.get(name)}",
                REBUILD,
            )


def _numpy_name(onnx_type: str) -> str:
    element = onnx_type.removeprefix("tensor(").removesuffix(")")
    return _NUMPY_NAMES.get(element, element)
