"""A FAKE of the module tensorrt: names and flow of the bindings, graphs run by ONNX Runtime.

A network is an ONNX graph's inputs, outputs and TensorScatter nodes. A plan is JSON that names the
graph. An execution puts work on the fake CUDA's stream that reads and writes the very bytes at the
tensor addresses, caches in place. The fake says nothing of what TensorRT makes of a graph. What
tests rebind is here; networks and plain values have files of their own. test_drift.py holds names
and parameters against the real bindings.
"""

import itertools
import json
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from tests.fakes.cuda import ALIGNMENT, POISON, FakeCuda
from tests.fakes.tensorrt_network import (
    INetworkDefinition,
    IPluginRegistry,
    ITensor,
    OnnxParser,
    ParserError,
    calls,
    planted,
    tensors_of,
)
from tests.fakes.tensorrt_types import (
    NUMPY,
    BuilderFlag,
    DataType,
    Dims,
    ExecutionContextAllocationStrategy,
    HardwareCompatibilityLevel,
    ILogger,
    IOutputAllocator,
    IProgressMonitor,
    IStreamWriter,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    OnnxParserFlag,
    TensorFormat,
    TensorIOMode,
)

__all__ = ["ITensor", "NetworkDefinitionCreationFlag", "OnnxParser", "OnnxParserFlag"]
"""Of the module, and used by its callers alone."""

__version__ = "11.4.0.106"

float32, float16, bfloat16 = DataType.FLOAT, DataType.HALF, DataType.BF16
int64, int32, int8 = DataType.INT64, DataType.INT32, DataType.INT8

gpu = FakeCuda()
"""Each test brings its own."""
_number = itertools.count()

PLAN: dict[str, Any] = {
    "tensorrt": __version__,
    "device_memory": 4096,
    "version_compatible": False,
    "stripped": False,
    "refittable": True,
    "plugins": [],
    "capturable": True,
    "context": True,
    "bf16": False,
    "shapes": {},
}
"""What a plan says beside its graph and its aliases. plugins: files that have to be loaded."""


class IHostMemory(bytes):
    pass


class ITimingCache:
    def __init__(self, _content: bytes) -> None:
        self._content = _content

    def serialize(self) -> IHostMemory:
        return IHostMemory(self._content)


class IBuilderConfig:
    def __init__(self) -> None:
        self.builder_optimization_level = 3
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.progress_monitor: IProgressMonitor | None = None
        self.plugins_to_serialize: list[str] = []
        self._flags = {BuilderFlag.TF32}
        self._pools: dict[str, int] = {}
        self._cache: ITimingCache | None = None

    def set_flag(self, flag: BuilderFlag) -> None:
        self._flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._flags.discard(flag)

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        self._pools[pool.name] = pool_size

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache:
        return ITimingCache(bytes(serialized_timing_cache))

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """It fits where this version wrote it, or where it is new."""
        fits = not cache._content or cache._content.startswith(__version__.encode())
        if fits or ignore_mismatch:
            self._cache = cache
        return fits or ignore_mismatch

    def get_timing_cache(self) -> ITimingCache | None:
        return self._cache


class Builder:
    def __init__(self, logger: ILogger) -> None:
        assert logger._ready, "ILogger.__init__ was not called"
        self._logger, self._registry = logger, IPluginRegistry("builder", logger)

    def get_plugin_registry(self) -> IPluginRegistry:
        return self._registry

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        calls.append(("network", flags))
        return INetworkDefinition()

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def build_serialized_network_to_stream(
        self, network: INetworkDefinition, config: IBuilderConfig, writer: IStreamWriter
    ) -> bool:
        calls.append(("build", config))
        self._logger.log(ILogger.WARNING, "a warning")
        assert config._cache is not None
        config._cache._content = (config._cache._content or __version__.encode()) + b"+"
        if not _steps(config.progress_monitor):
            return False
        if "build_error" in planted:
            self._logger.log(ILogger.ERROR, planted["build_error"])
            self._logger.log(ILogger.ERROR, "another error")
            return False
        portable = BuilderFlag.VERSION_COMPATIBLE in config._flags
        inside = config.plugins_to_serialize if portable else []
        plan = PLAN | {
            "tensorrt": __version__,
            "graph": network._graph,
            "aliases": network._aliases,
            "plugins": [Path(one).name for one in self._registry._libraries if one not in inside],
            "version_compatible": portable,
            "stripped": BuilderFlag.STRIP_PLAN in config._flags,
            "unlike": next(_number),
        }
        content = json.dumps(plan).encode().ljust(20_000)
        pieces = (content[at : at + 1000] for at in range(0, len(content), 1000))
        return all(writer.write(piece) == len(piece) for piece in pieces)


def _steps(monitor: IProgressMonitor | None) -> bool:
    """Two phases, one inside the other, as an optimizer reports them; whether to go on."""
    if monitor is None:
        return True
    steps = int(planted.get("steps", 3))
    monitor.phase_start("Building Engine", None, 1)
    monitor.phase_start("Timing kernels", "Building Engine", steps)
    going = all(_step(monitor, step) for step in range(steps))
    monitor.phase_finish("Timing kernels")
    monitor.phase_finish("Building Engine")
    return going


def _step(monitor: IProgressMonitor, step: int) -> bool:
    time.sleep(planted.get("step_seconds", 0))
    return monitor.step_complete("Timing kernels", step)


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        assert logger._ready, "ILogger.__init__ was not called"
        self._logger, self._registry = logger, IPluginRegistry("runtime", logger)
        self.engine_host_code_allowed = False

    def get_plugin_registry(self) -> IPluginRegistry:
        return self._registry

    def deserialize_cuda_engine(self, serialized_engine: Any) -> "ICudaEngine | None":
        calls.append(("load", self.engine_host_code_allowed))
        try:
            plan = json.loads(bytes(memoryview(serialized_engine)))
        except ValueError:
            return self._refuse("the magic tag does not match")
        if "no_plan" in planted:
            return self._refuse(planted["no_plan"])
        if plan["tensorrt"] != __version__ and not plan["version_compatible"]:
            return self._refuse("the version does not match")
        if plan["version_compatible"] and not self.engine_host_code_allowed:
            return self._refuse("the plan holds code, which is not allowed")
        if set(plan["plugins"]) - {Path(one).name for one in self._registry._libraries}:
            return self._refuse("no creator of the plugin SnapKVSelect")
        return ICudaEngine(plan, self._logger)

    def _refuse(self, message: str) -> None:
        self._logger.log(ILogger.ERROR, message)


class ICudaEngine:
    def __init__(self, _plan: dict[str, Any], _logger: ILogger) -> None:
        self._plan, self._logger = _plan, _logger
        self._has_weights = not _plan["stripped"]
        graph = onnx.load(_plan["graph"], load_external_data=False).graph
        self._inputs, self._outputs = tensors_of(graph.input), tensors_of(graph.output)
        self._tensors = self._inputs | self._outputs
        for name, tensor in self._tensors.items():
            if _plan["bf16"] and tensor.dtype is DataType.FLOAT and name != "logits":
                tensor.dtype = DataType.BF16
            tensor.shape = Dims(_plan["shapes"].get(name, tensor.shape))

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def device_memory_size_v2(self) -> int:
        return int(self._plan["device_memory"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return self._tensors[name].dtype

    def get_tensor_shape(self, name: str) -> Dims:
        return self._tensors[name].shape

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_format(self, name: str, profile_index: int) -> TensorFormat:
        return TensorFormat.LINEAR

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_aliased_input_tensor(self, name: str) -> str | None:
        past: str | None = self._plan["aliases"].get(name)
        return past

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> "IExecutionContext | None":
        if self._has_weights and self._plan["context"]:
            return IExecutionContext(self, strategy)
        self._logger.log(ILogger.ERROR, "no room for a context")
        return None


class IExecutionContext:
    def __init__(self, _engine: ICudaEngine, _strategy: ExecutionContextAllocationStrategy) -> None:
        self.engine = _engine
        self._user_managed = _strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        self._workspace = (0, 0)
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, IOutputAllocator] = {}
        self._has_run = False

    @property
    def active_optimization_profile(self) -> int:
        return 0

    def set_device_memory(self, memory: int, size: int) -> None:
        assert memory % ALIGNMENT == 0
        self._workspace = memory, size

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert memory % ALIGNMENT == 0, name
        self._addresses[name] = memory
        return name in self.engine._tensors

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def get_tensor_shape(self, name: str) -> Dims:
        return self.engine.get_tensor_shape(name)

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        self._allocators[name] = output_allocator
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if gpu.capturing is not None and not (self._has_run and self.engine._plan["capturable"]):
            gpu.invalidate()
            return False
        for name, allocator in self._allocators.items():
            allocator.notify_shape(name, self.get_tensor_shape(name))
            self._addresses[name] = allocator.reallocate_output_async(
                name, 0, self._bytes(name), ALIGNMENT, stream_handle
            )
        assert self._addresses.keys() == self.engine._tensors.keys(), "an address is missing"
        assert not self._user_managed or self._workspace[1] >= self.engine.device_memory_size_v2
        self._check_overlaps()
        self._has_run = True
        gpu.put(stream_handle, self._run)
        return True

    def _check_overlaps(self) -> None:
        """Outputs lie apart from inputs, but those in place, which lie exactly there."""
        inputs = {self._addresses[name] for name in self.engine._inputs}
        for name in self.engine._outputs:
            past, address = self.engine.get_aliased_input_tensor(name), self._addresses[name]
            assert (address in inputs) is bool(past)
            assert not past or self._addresses[past] == address

    def _run(self) -> None:
        """Now, on the bytes as they are."""
        engine = self.engine
        calls.append(("run", Path(engine._plan["graph"]).stem))
        if self._user_managed:
            gpu.bytes_at(*self._workspace).fill(POISON)
        outputs = [self._array(name) for name in engine._outputs]
        if engine._plan["bf16"]:
            return  # the CPU can't; what the memory holds stays
        feeds = {name: self._array(name).copy() for name in engine._inputs}
        values = _session(engine._plan["graph"]).run(list(engine._outputs), feeds)
        for target, value in zip(outputs, values, strict=True):
            target[...] = value

    def _array(self, name: str) -> NDArray[Any]:
        tensor, block = self.engine._tensors[name], self._bytes(name)
        memory = gpu.bytes_at(self._addresses[name], block)
        return memory.view(NUMPY[tensor.dtype]).reshape(tensor.shape)

    def _bytes(self, name: str) -> int:
        tensor = self.engine._tensors[name]
        return math.prod(tensor.shape) * np.dtype(NUMPY[tensor.dtype]).itemsize


class Refitter:
    def __init__(self, engine: ICudaEngine, logger: ILogger) -> None:
        self._engine, self._graph = engine, ""

    def refit_cuda_engine(self) -> bool:
        self._engine._has_weights = self._graph == self._engine._plan["graph"]
        return self._engine._has_weights


class OnnxParserRefitter:
    def __init__(self, refitter: Refitter, logger: ILogger) -> None:
        self._refitter = refitter
        self.num_errors = 0

    def refit_from_file(self, model: str) -> bool:
        if not self._refitter._engine._plan["refittable"]:
            self.num_errors = 1
            return False
        self._refitter._graph = model
        return True

    def get_error(self, index: int) -> ParserError:
        return ParserError()


@cache
def _session(path: str) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
