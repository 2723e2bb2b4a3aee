"""Opens builds and probes rates on the devices that experiments run on.

A dry run does `--device cuda` on the CPU at tiny sizes; its numbers mean nothing for a GPU.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import TensorSpec
from snapexport.errors import UserError, first_line
from snapexport.measure.bench.probes import bandwidth, matmul, probes
from snapexport.measure.bench.turns import Case, probe
from snapexport.runtime.engine.backend import Memory
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor

DRY_RUN = "a dry run: on the CPU, at tiny sizes; it says nothing of a GPU"
COPIED_BYTES = 1 << 30
"""The probe holds twice as much of a GPU's memory."""

_QUICK_BYTES = 16 << 20
_DRIVER = Path("/proc/driver/nvidia/version")


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
        return {"gpu": gpu()} if self.name == "cuda" and not self.dry else {}

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
            return probes(self.threads)
        if self.dry:
            from snapexport.runtime.engine.backend import HostMemory

            return [device_copy(HostMemory(), _QUICK_BYTES)]
        from snapexport.runtime.engine.cuda import CudaMemory

        return [device_copy(CudaMemory())]


def device_copy(memory: Memory, nbytes: int = COPIED_BYTES) -> Case:
    """Bytes read and written by copies within a device's memory."""
    spec = TensorSpec(name="probe", dtype="float16", shape=[nbytes // 2])
    source, target = memory.allocate(spec), memory.allocate(spec)

    def copy() -> None:
        memory.copy(target, source)
        memory.synchronize()

    return probe("bandwidth", 2 * nbytes, copy)


def gpu() -> dict[str, Any]:
    """The GPU's name, its driver, and the CUDA versions of driver and runtime. Raises UserError."""
    from snapexport.runtime.engine.cuda import Device
    from snapexport.runtime.ort.devices import require_cuda_provider

    require_cuda_provider()
    device = Device()
    cuda = importlib.import_module("cuda.bindings.runtime")
    found = {
        "name": device.name,
        "compute_capability": device.compute_capability,
        # Not there under WSL.
        "driver": _DRIVER.read_text().splitlines()[0] if _DRIVER.is_file() else None,
        "driver_cuda": _cuda_version(*cuda.cudaDriverGetVersion()),
        "runtime_cuda": _cuda_version(*cuda.cudaRuntimeGetVersion()),
    }
    device.close()
    return found


def _cuda_version(status: Any, number: int) -> str | None:
    """CUDA's number as a version: 13040 is 13.4; None if unknown."""
    return None if int(status) else f"{number // 1000}.{number % 1000 // 10}"
