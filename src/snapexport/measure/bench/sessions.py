"""ONNX Runtime sessions of graphs that are not a build's, under the runtime's own options.

What is measured beside an executor has to wait, spin and prepack as the executor does.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import TensorSpec
from snapexport.errors import needs_extra

Arrays = dict[str, NDArray[Any]]


def open_session(model: Path | bytes, threads: int | None) -> Any:
    """A session on the CPU."""
    with needs_extra("cpu"):
        import onnxruntime as ort

        from snapexport.runtime.ort.devices import Cpu
        from snapexport.runtime.ort.session import session_options
    return ort.InferenceSession(
        model,
        session_options(threads, prepack=False, settings={}),
        providers=["CPUExecutionProvider"],
        disabled_optimizers=Cpu.left_out,
    )


class Bound:
    """A session tied to arrays: nothing is copied."""

    def __init__(self, session: Any, inputs: Arrays, outputs: Arrays) -> None:
        from onnxruntime import OrtValue

        self._session, self._binding = session, session.io_binding()
        self.inputs, self.outputs = inputs, outputs  # ONNX Runtime holds their addresses only
        for given in session.get_inputs():
            value = OrtValue.ortvalue_from_numpy(inputs[given.name])
            self._binding.bind_ortvalue_input(given.name, value)
        for name, array in outputs.items():
            self._binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)


def zeros(specs: list[TensorSpec]) -> Arrays:
    """An array for each input or output."""
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}
