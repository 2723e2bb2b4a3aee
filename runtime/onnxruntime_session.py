"""One graph in ONNX Runtime, bound once to buffers that never move.

Responsible for how a session is opened, that it is the graph the manifest describes, and that its
inputs and outputs are the very memory it was given. Knows no cache policy and no slot.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, first_line, needs_extra
from snapexport.contract.manifest import REBUILD, GraphEntry, GraphName, TensorSpec
from snapexport.runtime.onnxruntime_devices import Buffer, Device

with needs_extra("cpu"):
    import onnxruntime as ort

Buffers = dict[str, Buffer]

_NUMPY_NAMES = {"float": "float32", "double": "float64"}

_BFLOAT16 = 16
"""onnx.TensorProto.BFLOAT16: NumPy has no such type."""

# Both would write new copies of weights that otherwise stay in the mapped file.
_COPYING_OPTIMIZERS = ["ConstantFolding", "TransposeOptimizer"]


def buffers_for(
    entry: GraphEntry, device: Device, given: Mapping[str, Buffer] | None = None
) -> Buffers:
    """One buffer for each input and output of a graph: a given one, or a new one.

    A cache output shares the buffer of its input.
    """
    buffers = dict(given or {})
    for spec in (*entry.inputs, *entry.outputs):
        if spec.name not in buffers:
            buffers[spec.name] = buffers.get(names.past_of(spec.name)) or device.new(spec)
    return buffers


class Graph:
    """A session. On the CPU its weights are mapped from their files, shared with other sessions'.

    `prepack` gives it a rearranged copy of its own instead, which several rows are multiplied by
    faster. Target onnxruntime's graphs of 8 to 32 rows in fp32 have no use for it: they put the
    weights first in a product, and the second operand alone is rearranged.
    `captures` makes each run one launch where the device can do that; `captured` says whether.
    """

    def __init__(
        self,
        build: Build,
        name: GraphName,
        device: Device,
        threads: int | None = None,
        prepack: bool = False,
        captures: bool = False,
    ) -> None:
        self.entry = build.manifest.graphs[name]
        self.device = device
        path, options = build.graph(name), session_options(threads, prepack, device.settings)
        self._session, self.captured = _opened(path, options, device, captures)
        _check(path.name, "inputs", self.entry.inputs, self._session.get_inputs())
        _check(path.name, "outputs", self.entry.outputs, self._session.get_outputs())

    def bind(self, buffers: Buffers) -> "BoundGraph":
        """Tie every input and output to the buffer of its name."""
        return BoundGraph(self._session, self.entry, self.device, buffers)

    def operators(self) -> dict[str, Counter[str]]:
        """How many nodes of which operator each execution provider runs."""
        found: dict[str, Counter[str]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            nodes = (node.op_type for node in part.get_nodes())
            found.setdefault(part.ep_name, Counter()).update(nodes)
        return found


class BoundGraph:
    """A graph and its buffers. Write `arrays`, `run`, read `arrays`: nothing is copied but those.

    arrays: the host's side of the buffers that have one.
    """

    def __init__(self, session: Any, entry: GraphEntry, device: Device, buffers: Buffers) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._device = device
        self._buffers = buffers  # ONNX Runtime holds their addresses only
        inputs = [self._bind(self._binding.bind_input, spec) for spec in entry.inputs]
        outputs = [self._bind(self._binding.bind_output, spec).name for spec in entry.outputs]
        self._told = [buffer for buffer in inputs if buffer.is_of_host]
        self._read = {name: buffers[name] for name in names.read_each_run(outputs)}
        self.arrays = arrays_of(buffers)

    def run(self) -> None:
        """From the host's inputs to the outputs that it reads each time.

        A run of ONNX Runtime ends when its stream is empty.
        """
        for buffer in self._told:
            self._device.upload(buffer)
        self._session.run_with_iobinding(self._binding)
        for buffer in self._read.values():
            self._device.download(buffer)
        self._device.synchronize()

    def rows(self, output: str, start: int, stop: int) -> NDArray[Any]:
        """Of an output with a host's side; brought down now if no run does it."""
        rows = self._buffers[output].rows(start, stop)
        if output not in self._read:
            self._device.download(rows)
            self._device.synchronize()
        return rows.host

    def _bind(self, bind: Any, spec: TensorSpec) -> Buffer:
        buffer = self._buffers[spec.name]
        assert (buffer.dtype, buffer.shape) == (spec.dtype, tuple(spec.shape)), spec.name
        element = _BFLOAT16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
        bind(spec.name, self._device.name, 0, element, spec.shape, buffer.address)
        return buffer


def arrays_of(buffers: Buffers) -> dict[str, NDArray[Any]]:
    """What of them the host can see."""
    return {name: one.array for name, one in buffers.items() if one.array is not None}


def _opened(path: Path, options: Any, device: Device, captures: bool) -> tuple[Any, bool]:
    """The session, and whether its runs are one launch each."""
    try:
        return _session(path, options, device, captures), captures
    except UserError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
        if not captures:
            raise UserError(f"ONNX Runtime cannot load {path}: {error}", device.hint) from error
        why = first_line(error)
    opened = _opened(path, options, device, captures=False)
    warnings.warn(f"{path.name} runs without a CUDA graph, and slower: {why}", RuntimeWarning, 2)
    return opened


def _session(path: Path, options: Any, device: Device, captures: bool) -> Any:
    name, settings = device.provider(captures)
    session = ort.InferenceSession(
        path,
        options,
        providers=[(name, settings)],
        disabled_optimizers=_COPYING_OPTIMIZERS,
        enable_fallback=0,  # to the CPU, in silence, a hundred times as slow
    )
    if session.get_providers()[0] != name:
        raise UserError(
            f"ONNX Runtime could not load its {name}: it says why above",
            "pip install --force-reinstall 'snapexport[gpu]', and see what `nvidia-smi` says",
        )
    return session


def session_options(threads: int | None, prepack: bool, settings: Mapping[str, str]) -> Any:
    """Of every session. threads: None for a thread a core. settings: a device's own."""
    if threads is not None and threads < 1:
        raise UserError(f"{threads} threads cannot run anything", "use 1 or more, or leave it out")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    # A thread that waits spins for as long as it takes to wake one up, and then sleeps. Without an
    # end it takes the cores from other sessions and the host; not at all, 40 wake-ups in each step.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
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
