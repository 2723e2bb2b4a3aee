"""Opens builds and probes rates on the devices that experiments run on.

Rates are probed between measurements, with the same number of threads. A dry run does
`--device cuda` on the CPU at tiny sizes; its numbers mean nothing for a GPU.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import TensorSpec
from snapexport.errors import UserError, first_line
from snapexport.measure.bench import machine
from snapexport.measure.bench.sessions import open_session
from snapexport.measure.bench.turns import Case, probe
from snapexport.runtime.engine.backend import Memory
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor

DRY_RUN = "a dry run: on the CPU, at tiny sizes; it says nothing of a GPU"
_QUICK_BYTES = 16 << 20
READ_BYTES = 1 << 28
"""Far more than a processor's caches hold."""

ROWS = 1024
"""Of the square matrices: large enough for the full rate."""

COPIED_BYTES = 1 << 30
"""The probe holds twice as much of a GPU's memory."""

# c[M,N] = MatMul(a[M,K], b[K,N]), opset 21; test_probes.py has it as text. Written out, because
# whoever runs a build has no onnx package to make it with.
MATMUL = bytes.fromhex(
    "08083a5d0a130a01610a016212016322064d61744d756c3a001201675a150a01611210"
    "0a0e0801120a0a0312014d0a0312014b5a150a016212100a0e0801120a0a0312014b0a"
    "0312014e62150a016312100a0e0801120a0a0312014d0a0312014e42040a001015"
)


@dataclass(frozen=True)
class Device:
    """A device. quick: tiny probes. dry: a GPU's experiments on the CPU."""

    name: Literal["cpu", "cuda"] = "cpu"
    threads: int = 2
    quick: bool = False
    dry: bool = False

    @property
    def holds_all(self) -> bool:
        """Whether all systems are loaded at the same time; a GPU holds one build at a time."""
        return self.name == "cpu"

    def described(self) -> dict[str, Any]:
        """The GPU's name, driver and CUDA versions, for the results' machine. Raises UserError."""
        return {"gpu": machine.gpu()} if self.name == "cuda" and not self.dry else {}

    @contextmanager
    def opened(self, build: Build) -> Iterator[Executor]:
        """A build's executor, closed at the end. Raises UserError."""
        executor = self.open(build)
        try:
            yield executor
        except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
            if not type(error).__module__.startswith("onnxruntime."):
                raise
            raise UserError(
                f"ONNX Runtime: {first_line(error)}",
                "if the memory is full, a smaller --cache-budget with another --out takes less of "
                "it; what was measured is kept",
            ) from error
        finally:
            executor.close()

    def open(self, build: Build) -> Executor:
        """A build's executor, as a user's own run would open it. Raises UserError."""
        if self.name == "cuda" and not self.dry:
            executor = open_executor(build, backend="onnxruntime-cuda")
        else:
            executor = open_executor(build, backend="onnxruntime", threads=self.threads)
        assert isinstance(executor, Executor), "one process measures"
        return executor

    def probes(self) -> list[Case]:
        if self.name == "cpu":
            if self.quick:
                return [bandwidth(self.threads, _QUICK_BYTES), matmul(self.threads, 128)]
            return [bandwidth(self.threads), matmul(self.threads)]
        if self.dry:
            from snapexport.runtime.ort.devices import HostMemory

            return [device_copy(HostMemory(), _QUICK_BYTES)]
        from snapexport.runtime.engine.cuda import CudaMemory

        return [device_copy(CudaMemory())]


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


def device_copy(memory: Memory, nbytes: int = COPIED_BYTES) -> Case:
    """Bytes read and written by copies within a device's memory."""
    spec = TensorSpec(name="probe", dtype="float16", shape=[nbytes // 2])
    source, target = memory.allocate(spec), memory.allocate(spec)

    def copy() -> None:
        memory.copy(target, source)
        memory.synchronize()

    return probe("bandwidth", 2 * nbytes, copy)
