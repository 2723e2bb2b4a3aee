"""compress.onnx by itself: what the vote and the moving of keys and values cost after prefill.

Its inputs are random numbers of the right shapes: the work depends on the prompt's length, and not
on values. The part that votes is timed as a graph of its own, cut out of compress.onnx; what the
whole takes beyond that goes into moving sinks, ring and kept positions to their slots.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import needs_extra
from snapexport.contract.manifest import TensorSpec

Arrays = dict[str, NDArray[Any]]


class HandOver:
    """Two sessions on the same inputs. vote: None where nothing votes, or onnx is missing."""

    def __init__(self, build: Build, threads: int | None) -> None:
        entry, path = build.manifest.graphs["compress"], build.graph("compress")
        self._inputs = _inputs(entry.inputs)
        outputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in entry.outputs}
        self.whole = _Graph(str(path), self._inputs, outputs, threads)
        kept = {name: array for name, array in outputs.items() if not names.is_present(name)}
        cut = _cut(str(path), list(kept)) if kept else None
        self.vote = _Graph(cut, self._inputs, kept, threads) if cut else None

    def set_length(self, prompt_length: int) -> None:
        """Of the prompt that is handed over next."""
        self._inputs[names.PROMPT_LENGTH][:] = prompt_length


class _Graph:
    """A session bound to arrays, with the runtime's settings that matter to it."""

    def __init__(self, model: str | bytes, inputs: Arrays, outputs: Arrays, threads: int | None):
        with needs_extra("cpu"):
            import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._arrays = inputs, outputs  # ONNX Runtime holds their addresses only
        for one in self._session.get_inputs():
            value = ort.OrtValue.ortvalue_from_numpy(inputs[one.name])
            self._binding.bind_ortvalue_input(one.name, value)
        for name, array in outputs.items():
            self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))

    def run(self) -> None:
        """Once, from the inputs to the outputs."""
        self._session.run_with_iobinding(self._binding)


def times_hand_over(build: Build) -> bool:
    """Whether the build has a graph of its own for it."""
    return "compress" in build.manifest.graphs


def _inputs(specs: list[TensorSpec]) -> Arrays:
    """Caches and queries as random numbers, the prompt's length as zeros."""
    rng = np.random.default_rng(0)
    return {
        spec.name: np.zeros(spec.shape, spec.dtype)
        if spec.name == names.PROMPT_LENGTH
        else rng.standard_normal(spec.shape, np.float32).astype(spec.dtype, copy=False)
        for spec in specs
    }


def _cut(path: str, outputs: list[str]) -> bytes | None:
    """The part of a graph that makes these outputs; None without the onnx package."""
    try:
        import onnx
        from onnx.utils import Extractor
    except ModuleNotFoundError:
        return None
    model = onnx.load(path)
    inputs = [value.name for value in model.graph.input]
    part: bytes = Extractor(model).extract_model(inputs, outputs).SerializeToString()
    return part
