"""Runs a build's TensorRT engines (a `GraphBackend`) on a GPU.

Knows no batch slot and no cache policy.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName, TensorSpec
from snapexport.runtime.engine.backend import Buffer, Buffers, DeviceError, Work
from snapexport.runtime.engine.cuda import CudaMemory
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.trt.engines import Engines, JitCache, open_engines

if TYPE_CHECKING:
    from snapexport.contract.tensorrt_bindings import trt


class TensorRtBackend:
    """The execution contexts of a graph set, all in one workspace: no two of them run at once."""

    binds_rows = False
    """TensorRT takes addresses at multiples of 256 bytes, and a context has one set of them."""

    def __init__(self, build: Build, graphs: GraphSet) -> None:
        """Load the engines that were built for this machine. Raises UserError or DeviceError."""
        self.memory, self._engines = open_engines(build, graphs.names)
        self._build = build
        self._jit_caches: list[JitCache] = []
        self._contexts = _contexts(self.memory, self._engines, graphs.names, self._jit_caches)

    def bind(self, graph: GraphName, buffers: Buffers) -> Work:
        """Give the graph's context its addresses. A graph is bound once."""
        context, file = self._contexts[graph], self._build.manifest.graphs[graph].file
        apart = self._apart(buffers)
        for name, buffer in (buffers | apart).items():
            if not context.set_tensor_address(name, buffer.address):
                raise DeviceError(f"{file}: TensorRT takes no memory for '{name}'")
        run = partial(_execute, context, self.memory.device.stream, file)
        copies = [(buffers[name], own) for name, own in apart.items()]
        return partial(_run_and_copy, run, self.memory, copies) if copies else run

    def _apart(self, buffers: Buffers) -> Buffers:
        """Memory for what a kernel writes while it reads the columns before: convolutions' states.

        TensorRT for RTX 1.7 joins both into one kernel.
        """
        return {
            name: self.memory.allocate(TensorSpec(name=name, dtype=one.dtype, shape=[*one.shape]))
            for name, one in buffers.items()
            if names.is_present(name) and names.is_conv(name)
        }

    def capture(self, graph: GraphName, work: Work) -> Work | None:
        """Capture one run on the stream, with its copies; warn where TensorRT does not allow it."""
        self.memory.device.settle()
        work()  # TensorRT sets itself up in the first run
        self.memory.synchronize()
        try:
            return self.memory.device.capture(work)
        except DeviceError as error:
            warnings.warn(
                f"decode runs without a CUDA graph, and slower: {error}", RuntimeWarning, 2
            )
            return None

    def close(self) -> None:
        """Free the buffers now. Engines and their weights go with the contexts.

        Kernels may be compiled up to the last run, so their caches are written here.
        """
        while self._jit_caches:
            self._jit_caches.pop().save()
        self._contexts.clear()
        self.memory.device.close()


def _contexts(
    memory: CudaMemory,
    engines: Engines,
    graphs: Sequence[GraphName],
    jit_caches: list[JitCache],
) -> "dict[GraphName, trt.IExecutionContext]":
    from snapexport.contract.tensorrt_bindings import trt

    loaded = {name: engines.load(name) for name in graphs}
    engines.errors.clear()
    size = max(engine.device_memory_size_v2 for engine in loaded.values())
    workspace = memory.device.allocate(max(size, 1))
    contexts = {}
    for name, engine in loaded.items():
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        jit_cache = engines.jit_cache(name)
        if jit_cache is None:
            context = engine.create_execution_context(strategy)
        else:
            context = jit_cache.context(engine, strategy)
            jit_caches.append(jit_cache)
        if context is None:
            why = f": {engines.errors[-1].strip()}" if engines.errors else ""
            raise DeviceError(f"TensorRT makes no context of {name}{why}")
        context.set_device_memory(workspace, size)
        contexts[name] = context
    return contexts


def _run_and_copy(run: Work, memory: CudaMemory, copies: list[tuple[Buffer, Buffer]]) -> None:
    run()
    for target, source in copies:
        memory.copy(target, source)


def _execute(context: "trt.IExecutionContext", stream: int, file: str) -> None:
    if not context.execute_async_v3(stream):
        raise DeviceError(f"TensorRT did not run {file}")
