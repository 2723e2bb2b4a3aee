"""Keeps on disk the kernels that TensorRT for RTX compiles for a GPU when it first loads an engine.

The first load takes as long as the compilation; later ones read the file. TensorRT for RTX itself
refuses a file of another GPU, driver or version, and then compiles again.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.files.whole import write_whole

if TYPE_CHECKING:
    import tensorrt_rtx as rtx

LOG = logging.getLogger("snapexport.tensorrt")


class JitCache:
    """The compiled kernels of one engine."""

    def __init__(self, engine: Path, gpu: str) -> None:
        """engine: its file; the cache lies beside it. gpu: a name, for machines with several."""
        model = "".join(letter if letter.isalnum() else "_" for letter in gpu.lower())
        self.path = engine.with_suffix(f".{model}.jit_cache")
        self._cache: rtx.IRuntimeCache | None = None

    def context(
        self, engine: "rtx.ICudaEngine", strategy: "rtx.ExecutionContextAllocationStrategy"
    ) -> "rtx.IExecutionContext":
        """An execution context whose kernels come from the file, where they fit."""
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        self._cache = config.create_runtime_cache()
        if self.path.is_file() and not self._cache.deserialize(self.path.read_bytes()):
            LOG.warning("%s is of another GPU, driver or version: compiling again", self.path)
        config.set_runtime_cache(self._cache)
        return engine.create_execution_context(config)

    def save(self) -> None:
        """Write the file. A build that cannot be written to keeps none."""
        if self._cache is None:
            return
        try:
            write_whole(self.path, memoryview(self._cache.serialize()))
        except OSError as problem:
            LOG.warning("compiled kernels are not kept: %s", problem)
