"""Opens one graph in ONNX Runtime, checks it against the manifest, and binds it to buffers.

Knows no cache policy and no batch slot.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.contract.manifest import REBUILD, GraphEntry, TensorSpec
from snapexport.errors import UserError, first_line, needs_extra
from snapexport.runtime.engine.backend import (
    Buffers,
    GraphError,
    Work,
    require_promised,
    require_threads,
)
from snapexport.runtime.ort.devices import Cpu, Device
from snapexport.runtime.ort.shared_weights import SharedWeights

_NUMPY_NAMES = {"float": "float32", "double": "float64"}

_BFLOAT16 = 16
"""onnx.TensorProto.BFLOAT16: NumPy has no such type."""

_ONLY_ERRORS = 3
"""ONNX Runtime's log severity."""


class Session:
    """A graph, loaded. On the CPU its weights are mapped from their files, and shared.

    captured: whether each run is a single launch of a CUDA graph.
    """

    def __init__(
        self,
        path: Path,
        entry: GraphEntry,
        device: Device,
        threads: int | None = None,
        prepack: bool = False,
        captures: bool = False,
        weights: SharedWeights | None = None,
    ) -> None:
        """Raise UserError for a file that is not the graph of the manifest.

        threads: None for one a core. prepack: a rearranged copy of the weights, by which rows are
        multiplied faster. fp32 graphs of target onnxruntime gain nothing from it where they put the
        weights first in a product (graphs/targets/weights.py): the second operand is rearranged.
        captures: make each run a single launch, where the device can. weights: lent to the graph,
        which else maps them for itself.
        """
        self.entry = entry
        self._device = device
        options = session_options(threads, prepack, device.settings)
        if weights:
            weights.lend(path, options)
        self._session, self.captured = _open(path, options, device, captures)
        nodes = (*self._session.get_inputs(), *self._session.get_outputs())
        found = {node.name: (_numpy_name(node.type), node.shape) for node in nodes}
        require_promised(path.name, (*entry.inputs, *entry.outputs), found)

    def bind(self, buffers: Buffers) -> Work:
        """Tie every input and output to the buffer of its name."""
        return bind(self._session, self.entry, self._device.name, buffers)

    def operators(self) -> dict[str, dict[str, int]]:
        """Count the nodes of each operator that each execution provider runs."""
        found: dict[str, Counter[str]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            nodes = (node.op_type for node in part.get_nodes())
            found.setdefault(part.ep_name, Counter()).update(nodes)
        return {provider: dict(counted) for provider, counted in found.items()}


def bind(session: Any, entry: GraphEntry, device: str, buffers: Buffers) -> Work:
    """Return what runs a session over buffers. ONNX Runtime waits for the end of each run.

    ONNX Runtime holds only addresses: the caller keeps the buffers. What nodes on the CPU read of
    a GPU's memory it copies as it is bound: that is bound on the host, or anew before each run.
    """
    binding = session.io_binding()

    def tie(to: Any, spec: TensorSpec, host: bool = False) -> None:
        element = _BFLOAT16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
        buffer = buffers[spec.name]
        address = buffer.host.ctypes.data if host else buffer.address
        to(spec.name, "cpu" if host else device, 0, element, spec.shape, address)

    copied = _read_by_the_cpu(session, device)
    late = [one for one in entry.inputs if one.name in copied and buffers[one.name].array is None]
    for spec in entry.inputs:
        tie(binding.bind_input, spec, spec.name in copied and spec not in late)
    for spec in entry.outputs:
        tie(binding.bind_output, spec)

    def run() -> None:
        try:
            for spec in late:
                tie(binding.bind_input, spec)
            session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
            raise GraphError(
                f"ONNX Runtime failed while it ran {entry.file}: {first_line(error)}", REBUILD
            ) from error

    return run


def _read_by_the_cpu(session: Any, device: str) -> set[str]:
    """Inputs of a GPU's session that nodes on the CPU read, or no node."""
    if device == "cpu":
        return set()
    places = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    return {node.name for node, info in places if info.name == "Cpu"}


def session_options(threads: int | None, prepack: bool, settings: Mapping[str, str]) -> Any:
    """Return the options of every session. threads: None for one a core. settings: a device's."""
    require_threads(threads)
    options = _library().SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    # A waiting thread spins for as long as it takes to wake one up, then sleeps. Endless spinning
    # takes the cores from other sessions and the host; none costs 40 wake-ups in each step.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    return options


def version() -> str:
    """ONNX Runtime's version."""
    return str(_library().__version__)


def saved_optimized(path: Path, target: Path, weights: str) -> None:
    """Save a graph as this processor's kernels take it, its rearranged weights in the file beside.

    weights: the name of that file. Raises UserError.
    """
    options = session_options(None, True, {})
    options.optimized_model_filepath = str(target)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", weights)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", "1024")
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    options.log_severity_level = _ONLY_ERRORS  # it warns that the file fits only this processor
    device = Cpu()
    _open(path, options, device, captures=False)


def _library() -> Any:
    """ONNX Runtime. Raises UserError where it is not installed."""
    with needs_extra("cpu"):
        import onnxruntime
    return onnxruntime


def _open(path: Path, options: Any, device: Device, captures: bool) -> tuple[Any, bool]:
    """The session, and whether its runs are captured."""
    try:
        return _session(path, options, device, captures), captures
    except UserError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
        if not captures:
            raise UserError(f"ONNX Runtime cannot load {path}: {error}", device.hint) from error
        why = first_line(error)
    opened = _open(path, options, device, captures=False)
    warnings.warn(f"{path.name} runs without a CUDA graph, and slower: {why}", RuntimeWarning, 2)
    return opened


def _session(path: Path, options: Any, device: Device, captures: bool) -> Any:
    name, settings = device.provider(captures)
    session = _library().InferenceSession(
        path,
        options,
        providers=[(name, settings)],
        disabled_optimizers=device.left_out,
        enable_fallback=0,  # to the CPU, silently, a hundred times as slow
    )
    if session.get_providers()[0] != name:
        raise UserError(
            f"ONNX Runtime could not load its {name}: the reason is above",
            "pip install --force-reinstall 'snapexport[gpu]', and see what `nvidia-smi` says",
        )
    return session


def _numpy_name(onnx_type: str) -> str:
    element = onnx_type.removeprefix("tensor(").removesuffix(")")
    return _NUMPY_NAMES.get(element, element)
