"""Probes this machine's rates between measurements, with the same number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from snapexport.measure.bench.options import BenchBackend
from snapexport.measure.bench.sessions import open_session
from snapexport.measure.bench.turns import Case, probe

READ_BYTES = 1 << 28
"""Far more than a processor's caches hold."""

ROWS = 1024
"""Of the square matrices: large enough for the full rate."""

# c[M,N] = MatMul(a[M,K], b[K,N]), opset 21; test_probes.py has it as text. Written out, because
# whoever runs a build has no onnx package to make it with.
MATMUL = bytes.fromhex(
    "08083a5d0a130a01610a016212016322064d61744d756c3a001201675a150a01611210"
    "0a0e0801120a0a0312014d0a0312014b5a150a016212100a0e0801120a0a0312014b0a"
    "0312014e62150a016312100a0e0801120a0a0312014d0a0312014e42040a001015"
)


def probes(
    threads: int, backend: BenchBackend = "onnxruntime", precision: str | None = None
) -> list[Case]:
    """What the rooflines of this machine follow from. The product runs as the build does."""
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
