"""Probes the machine's best rates, between measurements and with the same number of threads.

Bandwidth: reading a large array, a slice for each thread, by bitwise or, NumPy's cheapest read of
every byte. Products: ONNX Runtime's square MatMul in fp32, in which the CPU computes for every
dtype. On a GPU: copies within its memory.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from snapexport.bench.sessions import open_session
from snapexport.contract.manifest import TensorSpec
from snapexport.runtime.backend import Memory

READ_BYTES = 1 << 28
"""Bytes of the array: far more than a processor's caches."""

ROWS = 1024
"""Of the square matrices: large enough for the full rate, 2 * 1024^3 operations."""

COPIED_BYTES = 1 << 30
"""Twice that of a GPU's memory is held by the probe."""

# c[M,N] = MatMul(a[M,K], b[K,N]), opset 21: tests/bench/test_probes.py has it as text. Written out,
# because whoever runs a build has no onnx package to make it with.
MATMUL = bytes.fromhex(
    "08083a5d0a130a01610a016212016322064d61744d756c3a001201675a150a01611210"
    "0a0e0801120a0a0312014d0a0312014b5a150a016212100a0e0801120a0a0312014b0a"
    "0312014e62150a016312100a0e0801120a0a0312014d0a0312014e42040a001015"
)


class Probe(Protocol):
    """Something to be timed: `amount` divided by the seconds of `run` is the rate called `name`."""

    @property
    def name(self) -> str:
        """bandwidth or matmul."""
        ...

    @property
    def amount(self) -> int:
        """Bytes or operations of a run."""
        ...

    def run(self) -> None:
        """Do it once."""
        ...


class Bandwidth:
    """Bytes read from memory."""

    name = "bandwidth"

    def __init__(self, threads: int, nbytes: int = READ_BYTES) -> None:
        words = np.ones(nbytes // 8, np.int64)  # ones: zeros would be one page, mapped everywhere
        self.amount = words.nbytes
        self._slices = np.array_split(words, threads)
        self._pool = ThreadPoolExecutor(threads)

    def run(self) -> None:
        """Every byte once; NumPy lets go of the interpreter's lock meanwhile."""
        for _ in self._pool.map(np.bitwise_or.reduce, self._slices):
            pass


class MatMul:
    """Multiplications and additions of a product, under the runtime's own session options."""

    name = "matmul"

    def __init__(self, threads: int, rows: int = ROWS) -> None:
        self._session = open_session(MATMUL, threads)
        matrix = np.random.default_rng(0).random((rows, rows), np.float32)
        self._feeds = {"a": matrix, "b": matrix}
        self.amount = 2 * rows**3

    def run(self) -> None:
        """One product."""
        self._session.run(None, self._feeds)


class DeviceCopy:
    """Bytes read and written by copies within a device's memory."""

    name = "bandwidth"

    def __init__(self, memory: Memory, nbytes: int = COPIED_BYTES) -> None:
        spec = TensorSpec(name="probe", dtype="float16", shape=[nbytes // 2])
        self._memory = memory
        self._source, self._target = memory.allocate(spec), memory.allocate(spec)
        self.amount = 2 * nbytes

    def run(self) -> None:
        """One copy, waited for."""
        self._memory.copy(self._target, self._source)
        self._memory.synchronize()
