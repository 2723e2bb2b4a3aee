"""Runs what a benchmark times beside a build: the machine's rates, and the vote by itself.

It has to wait, spin and prepack as an executor does: sessions have the runtime's own options.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import TensorSpec
from snapexport.errors import needs_extra
from snapexport.measure.bench.turns import Case, probe
from snapexport.measure.options import BenchBackend

Arrays = dict[str, NDArray[Any]]

READ_BYTES = 1 << 28
"""Far more than a processor's caches hold."""

ROWS = 1024
"""Rows of the square matrices: enough for the full rate."""

# c[M,N] = MatMul(a[M,K], b[K,N]), opset 21; test_probes.py has it as text. Written out, since
# an installation that runs builds has no onnx package.
MATMUL = bytes.fromhex(
    "08083a5d0a130a01610a016212016322064d61744d756c3a001201675a150a01611210"
    "0a0e0801120a0a0312014d0a0312014b5a150a016212100a0e0801120a0a0312014b0a"
    "0312014e62150a016312100a0e0801120a0a0312014d0a0312014e42040a001015"
)


def probes(
    threads: int, backend: BenchBackend = "onnxruntime", precision: str | None = None
) -> list[Case]:
    """The rates from which rooflines of this machine follow. The product runs as the build does."""
    in_openvino = backend == "openvino"
    product = openvino_matmul(threads, precision or "f32") if in_openvino else matmul(threads)
    return [bandwidth(threads), product]


def bandwidth(threads: int, nbytes: int = READ_BYTES) -> Case:
    """Bytes read by bitwise or, NumPy's cheapest read of every byte; each thread has a slice."""
    words = np.ones(nbytes // 8, np.int64)  # ones: zeros would be one page, mapped everywhere
    slices, pool = np.array_split(words, threads), ThreadPoolExecutor(threads)
    # NumPy lets go of the interpreter's lock meanwhile.
    return probe("bandwidth", words.nbytes, lambda: list(pool.map(np.bitwise_or.reduce, slices)))


def matmul(threads: int, rows: int = ROWS) -> Case:
    """Operations of ONNX Runtime's square product in fp32, in which it computes every dtype."""
    session = open_session(MATMUL, threads)
    matrix = np.random.default_rng(0).random((rows, rows), np.float32)
    return probe("matmul", 2 * rows**3, lambda: session.run(None, {"a": matrix, "b": matrix}))


def openvino_matmul(threads: int, precision: str, rows: int = ROWS) -> Case:
    """Operations of OpenVINO's square product in a precision."""
    from snapexport.runtime.openvino.backend import core

    model = core().read_model(MATMUL, b"")
    model.reshape({name: [rows, rows] for name in "ab"})
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    request = core().compile_model(model, "CPU", settings).create_infer_request()
    matrix = np.random.default_rng(0).random((rows, rows), np.float32)
    given = {"a": matrix, "b": matrix}
    return probe("matmul", 2 * rows**3, lambda: request.infer(given, share_inputs=True))


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


def extracted_vote(build: Build, threads: int | None) -> Bound | None:
    """The part of compress.onnx that chooses what to keep, over random numbers.

    What the compress step takes beyond it goes into moving sinks, ring and kept positions to their
    cache slots. The work depends on the prompt's length, not on values. None where nothing votes,
    or without the onnx package.
    """
    try:
        import onnx
        from onnx.utils import Extractor
    except ModuleNotFoundError:
        return None
    entry = build.manifest.graphs["compress"]
    kept = [spec for spec in entry.outputs if not names.is_present(spec.name)]
    if not kept:
        return None
    whole = onnx.load(str(build.graph("compress")))
    given = [value.name for value in whole.graph.input]
    vote = Extractor(whole).extract_model(given, [spec.name for spec in kept])
    rng, inputs = np.random.default_rng(0), zeros(entry.inputs)
    for name, array in inputs.items():
        if name != names.PROMPT_LENGTH:
            array[...] = rng.standard_normal(array.shape, np.float32)
    return Bound(open_session(vote.SerializeToString(), threads), inputs, zeros(kept))


def run_vote(vote: Bound, prompt_length: int) -> None:
    """Once, for a prompt of that length."""
    vote.inputs[names.PROMPT_LENGTH][:] = prompt_length
    vote.run()
