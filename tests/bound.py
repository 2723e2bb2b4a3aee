"""Runs one graph of a build on plain arrays. Input and output caches share their memory."""

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName


class BoundGraph:
    """`arrays` by name: write the inputs, `run`, read the outputs."""

    def __init__(self, build: Build, graph: GraphName) -> None:
        entry = build.manifest.graphs[graph]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        path, providers = build.graph(graph), ["CPUExecutionProvider"]
        self._session = ort.InferenceSession(path, options, providers=providers)
        self._binding = self._session.io_binding()
        self.arrays: dict[str, NDArray[Any]] = {}
        for spec in entry.inputs:
            array = self.arrays[spec.name] = np.zeros(spec.shape, spec.dtype)
            self._binding.bind_ortvalue_input(spec.name, ort.OrtValue.ortvalue_from_numpy(array))
        for spec in entry.outputs:
            array = self.arrays.get(names.past_of(spec.name), np.zeros(spec.shape, spec.dtype))
            self.arrays[spec.name] = array
            self._binding.bind_ortvalue_output(spec.name, ort.OrtValue.ortvalue_from_numpy(array))

    def run(self) -> NDArray[np.float32]:
        """The logits."""
        self._session.run_with_iobinding(self._binding)
        logits: NDArray[np.float32] = self.arrays[names.LOGITS]
        return logits
