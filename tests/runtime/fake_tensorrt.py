"""A FAKE of the module tensorrt: plans name an ONNX file, and ONNX Runtime runs it on the CPU.

An execution puts work on the fake CUDA's stream that reads and writes the very bytes at the tensor
addresses, caches in place. It shows that our calls come in an order, and with the arguments, that
make a run possible; it says nothing of what TensorRT makes of a graph. Names and parameters are
held against the real bindings by test_tensorrt_fakes.py.
"""

import json
import math
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from typing_extensions import Buffer

from tests.runtime.fake_cuda import ALIGNMENT, POISON, FakeCuda

__version__ = "11.4.0.106"

cuda = FakeCuda()
"""The GPU; each test brings its own."""


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        self.ready = True

    def log(self, severity: "ILogger.Severity", msg: str) -> None:
        raise NotImplementedError


class DataType(Enum):
    FLOAT = "float32"
    HALF = "float16"
    BF16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"


float32, float16, bfloat16 = DataType.FLOAT, DataType.HALF, DataType.BF16
int64, int32, int8 = DataType.INT64, DataType.INT32, DataType.INT8


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    USER_MANAGED = 2


class TensorIOMode(Enum):
    INPUT = 1
    OUTPUT = 2


class TensorFormat(Enum):
    LINEAR = 0
    HWC = 6
    CHW16 = 4


class Dims(tuple[int, ...]):
    pass


class IOutputAllocator:
    """Polygraphy's gives memory for what shares no input's."""

    def reallocate_output_async(
        self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
    ) -> int:
        raise NotImplementedError

    def notify_shape(self, tensor_name: str, shape: Dims) -> None:
        raise NotImplementedError


class IPluginRegistry:
    def __init__(self, logger: ILogger) -> None:
        self.loaded: set[str] = set()
        self._logger = logger

    def load_library(self, plugin_path: str) -> object | None:
        if plugin_path in self.loaded or not Path(plugin_path).read_bytes():
            self._logger.log(ILogger.Severity.ERROR, f"cannot load {plugin_path}")
            return None
        self.loaded.add(plugin_path)
        return object()


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        assert logger.ready, "ILogger.__init__ was not called"
        self.engine_host_code_allowed = False
        self._logger = logger
        self._registry = IPluginRegistry(logger)

    def get_plugin_registry(self) -> IPluginRegistry:
        return self._registry

    def deserialize_cuda_engine(self, serialized_engine: Buffer) -> "ICudaEngine | None":
        try:
            plan = json.loads(bytes(memoryview(serialized_engine)))
        except ValueError:
            return self._refuse("the magic tag does not match")
        if plan["tensorrt"] != __version__ and not plan["version_compatible"]:
            return self._refuse("the version does not match")
        if plan["version_compatible"] and not self.engine_host_code_allowed:
            return self._refuse("the plan holds code, which is not allowed")
        if plan["plugins"] and not self._registry.loaded:
            return self._refuse("no creator of the plugin SnapKVSelect")
        return ICudaEngine(plan, self._logger)

    def _refuse(self, message: str) -> None:
        self._logger.log(ILogger.Severity.ERROR, message)


class ICudaEngine:
    executions: ClassVar[list[str]] = []
    """The graphs that ran, in order."""

    def __init__(self, plan: dict[str, Any], logger: ILogger) -> None:
        self.plan, self._logger = plan, logger
        self.has_weights = not plan["stripped"]
        graph = onnx.load(plan["graph"], load_external_data=False).graph
        self.inputs, self.outputs = map(_described, (graph.input, graph.output))
        self.tensors = self.inputs | self.outputs
        if plan["bf16"]:
            self.tensors = {name: _as_bf16(name, *spec) for name, spec in self.tensors.items()}
        for name, shape in plan["shapes"].items():
            self.tensors[name] = self.tensors[name][0], tuple(shape)

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def device_memory_size_v2(self) -> int:
        return int(self.plan["device_memory"])

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name][0]

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self.tensors[name][1])

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_format(self, name: str, profile_index: int) -> TensorFormat:
        return TensorFormat.LINEAR

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_aliased_input_tensor(self, name: str) -> str | None:
        past = name.replace("present.", "past_key_values.")
        in_place = past in self.inputs and "compress" not in self.plan["graph"]
        return past if in_place and self.plan["aliases"] else None

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> "IExecutionContext | None":
        if self.has_weights and self.plan["context"]:
            return IExecutionContext(self, strategy)
        self._logger.log(ILogger.Severity.ERROR, "no room for a context")
        return None


class IExecutionContext:
    def __init__(self, engine: ICudaEngine, strategy: ExecutionContextAllocationStrategy) -> None:
        self.engine = engine
        self._user_managed = strategy is ExecutionContextAllocationStrategy.USER_MANAGED
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
        return name in self.engine.tensors

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def get_tensor_shape(self, name: str) -> Dims:
        return self.engine.get_tensor_shape(name)

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        self._allocators[name] = output_allocator
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if cuda.capturing is not None and not (self._has_run and self.engine.plan["capturable"]):
            cuda.invalidate()
            return False
        for name, allocator in self._allocators.items():
            self._addresses[name] = self._allocated(name, allocator, stream_handle)
        assert self._addresses.keys() == self.engine.tensors.keys(), "not everything has an address"
        assert not self._user_managed or self._workspace[1] >= self.engine.device_memory_size_v2
        self._check_overlaps()
        self._has_run = True
        cuda.put(stream_handle, self._run)
        return True

    def _allocated(self, name: str, allocator: IOutputAllocator, stream: int) -> int:
        allocator.notify_shape(name, self.engine.get_tensor_shape(name))
        size = self._bytes(name)
        return allocator.reallocate_output_async(name, 0, size, ALIGNMENT, stream)

    def _check_overlaps(self) -> None:
        """Outputs lie apart from inputs, but those in place, which lie exactly there."""
        inputs = {self._addresses[name] for name in self.engine.inputs}
        for name in self.engine.outputs:
            past = self.engine.get_aliased_input_tensor(name)
            shared = self._addresses[name] in inputs
            assert shared is bool(past) and (
                not past or self._addresses[past] == self._addresses[name]
            )

    def _run(self) -> None:
        """Now, on the bytes as they are."""
        ICudaEngine.executions.append(Path(self.engine.plan["graph"]).stem)
        if self._user_managed:
            cuda.bytes_at(*self._workspace).fill(POISON)
        outputs = [self._tensor(name) for name in self.engine.outputs]
        if self.engine.plan["bf16"]:
            return  # the CPU can't; what the memory holds stays
        feeds = {name: self._tensor(name).copy() for name in self.engine.inputs}
        session = _session(self.engine.plan["graph"])
        for target, value in zip(
            outputs, session.run(list(self.engine.outputs), feeds), strict=True
        ):
            target[...] = value

    def _tensor(self, name: str) -> NDArray[Any]:
        kind, shape = self.engine.tensors[name]
        block = cuda.bytes_at(self._addresses[name], self._bytes(name))
        return block.view(_numpy(kind)).reshape(shape)

    def _bytes(self, name: str) -> int:
        kind, shape = self.engine.tensors[name]
        return math.prod(shape) * _numpy(kind).itemsize


class Refitter:
    def __init__(self, engine: ICudaEngine, logger: ILogger) -> None:
        self.engine = engine
        self.graph = ""

    def refit_cuda_engine(self) -> bool:
        self.engine.has_weights = self.graph == self.engine.plan["graph"]
        return self.engine.has_weights


class ParserError:
    def desc(self) -> str:
        return "the weights don't fit"


class OnnxParserRefitter:
    def __init__(self, refitter: Refitter, logger: ILogger) -> None:
        self._refitter = refitter
        self.num_errors = 0

    def refit_from_file(self, model: str) -> bool:
        if not self._refitter.engine.plan["refittable"]:
            self.num_errors = 1
            return False
        self._refitter.graph = model
        return True

    def get_error(self, index: int) -> ParserError:
        return ParserError()


def _numpy(kind: DataType) -> "np.dtype[Any]":
    return np.dtype("uint16" if kind is DataType.BF16 else kind.value)


def _described(values: Any) -> dict[str, tuple[DataType, tuple[int, ...]]]:
    names = {onnx.TensorProto.FLOAT: DataType.FLOAT, onnx.TensorProto.INT64: DataType.INT64}
    return {
        value.name: (
            names[value.type.tensor_type.elem_type],
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
        )
        for value in values
    }


def _as_bf16(name: str, kind: DataType, shape: tuple[int, ...]) -> tuple[DataType, tuple[int, ...]]:
    floats = kind is DataType.FLOAT and name != "logits"
    return (DataType.BF16 if floats else kind), shape


@cache
def _session(path: str) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
