"""A decode graph that gives its caches in other buffers than it takes them from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import TensorSpec
from snapexport.runtime.decode_inputs import Integers, write_decode_inputs
from snapexport.runtime.ort.session import session_options
from snapexport.runtime.predictions import Logits

from .filled import fill

Arrays = dict[str, NDArray[Any]]


def load(build: Path, graph: Path, threads: int) -> "NaiveDecode":
    """For a process of its own."""
    return NaiveDecode(Build.open(build), graph, threads)


class NaiveDecode:
    """The naive graph of a build, its caches in one set of buffers and out in another, in turn.

    inputs: those of the first step.
    """

    def __init__(self, build: Build, graph: Path, threads: int) -> None:
        entry = build.manifest.graphs["decode"]
        self.inputs, self._outputs = _arrays(entry.inputs), _arrays(entry.outputs)
        read = {name: array for name, array in self.inputs.items() if names.is_past(name)}
        written = {name: np.zeros_like(array) for name, array in read.items()}
        session = _session(graph, threads)
        # What goes out comes in next: the second binding has the caches the other way round.
        self._bound = [
            Bound(session, self.inputs | read, self._outputs | _named(self._outputs, written)),
            Bound(session, self.inputs | written, self._outputs | _named(self._outputs, read)),
        ]
        self._context = 1
        fill(self.inputs)

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        """Take a prompt for prefilled; all slots' are as long as the last one's."""
        self._context = len(prompt)

    def decode(self, active: int) -> None:
        """A step of all slots."""
        self.step(self._context)

    def step(self, context: int) -> None:
        """The token at position context - 1, behind a prompt of all before it."""
        position = np.full(len(self.inputs[names.INPUT_IDS]), context - 1)
        self.run(np.ones_like(position), position, position)

    def run(self, input_ids: Integers, position_ids: Integers, prompt_length: Integers) -> Logits:
        """One token of every slot; logits [B,V]."""
        write_decode_inputs(self.inputs, input_ids, position_ids, prompt_length)
        self._bound[0].run()
        self._bound.reverse()
        return self._outputs[names.LOGITS]


class Bound:
    """A session tied to arrays: nothing is copied."""

    def __init__(self, session: Any, inputs: Arrays, outputs: Arrays) -> None:
        import onnxruntime as ort

        self._session, self._binding = session, session.io_binding()
        self._arrays = inputs, outputs  # ONNX Runtime holds their addresses only
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))

    def run(self) -> None:
        """From the inputs to the outputs."""
        self._session.run_with_iobinding(self._binding)


def _session(path: Path, threads: int) -> Any:
    """With the settings of the runtime's own, so that the graphs alone differ."""
    import onnxruntime as ort

    return ort.InferenceSession(
        path,
        session_options(threads, prepack=False, settings={}),
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["ConstantFolding", "TransposeOptimizer"],
    )


def _arrays(specs: Sequence[TensorSpec]) -> Arrays:
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}


def _named(outputs: Arrays, caches: Arrays) -> Arrays:
    """The caches by the names of the outputs that are them, of which a cache may have several."""
    pasts = {name: names.past_of(name) for name in outputs}
    return {name: caches[past] for name, past in pasts.items() if past in caches}
