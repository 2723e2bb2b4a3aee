"""Opens builds and probes rates on the devices that experiments run on.

A dry run does `--device cuda` on the CPU at tiny sizes; its numbers mean nothing for a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from snapexport.bench import machine
from snapexport.bench.probes import bandwidth, device_copy, matmul
from snapexport.bench.turns import Case
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, first_line
from snapexport.runtime.executor import Executor
from snapexport.runtime.open_executor import open_executor

DRY_RUN = "a dry run: on the CPU, at tiny sizes; it says nothing of a GPU"
_QUICK_BYTES = 16 << 20


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
            return open_executor(build, backend="onnxruntime-cuda")
        return open_executor(build, backend="onnxruntime", threads=self.threads)

    def probes(self) -> list[Case]:
        """The probes of this device's rates."""
        if self.name == "cpu":
            if self.quick:
                return [bandwidth(self.threads, _QUICK_BYTES), matmul(self.threads, 128)]
            return [bandwidth(self.threads), matmul(self.threads)]
        if self.dry:
            from snapexport.runtime.ort.devices import HostMemory

            return [device_copy(HostMemory(), _QUICK_BYTES)]
        from snapexport.runtime.cuda import CudaMemory

        return [device_copy(CudaMemory())]
