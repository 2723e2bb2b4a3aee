"""A FAKE of TensorRT: the names and the flow of its Python bindings, and nothing behind them.

`test_fakes.py` holds every name and parameter against the real bindings. A network is the ONNX
graph's inputs, outputs and TensorScatter nodes; a plan is JSON. What goes wrong is planted in
`planted`, or for another process in the environment's FAKE_TENSORRT (JSON).
"""

import enum
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import onnx

__version__ = "11.4.0.106"

planted: dict[str, Any] = {}
"""parse_error, build_error, no_plan: a message; recovered: one of an error that stops nothing.
not_aliased. other_shape: of the tensor so named. steps, step_seconds: of a build."""
_number = itertools.count()
calls: list[tuple[str, Any]] = []
"""Calls of the fake, recorded for tests."""


def _reset() -> None:
    planted.clear()
    planted.update(json.loads(os.environ.get("FAKE_TENSORRT", "{}")))
    calls.clear()


class DataType(enum.IntEnum):
    FLOAT = 0
    HALF = 1
    INT32 = 3
    BOOL = 4
    INT64 = 8
    BF16 = 9


class BuilderFlag(enum.IntEnum):
    REFIT = 2
    TF32 = 5
    VERSION_COMPATIBLE = 13
    STRIP_PLAN = 17
    REFIT_IDENTICAL = 18


class NetworkDefinitionCreationFlag(enum.IntEnum):
    STRONGLY_TYPED = 1


class HardwareCompatibilityLevel(enum.IntEnum):
    NONE = 0
    AMPERE_PLUS = 1
    SAME_COMPUTE_CAPABILITY = 2


class MemoryPoolType(enum.IntEnum):
    WORKSPACE = 0


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    INTERNAL_ERROR = Severity.INTERNAL_ERROR
    ERROR = Severity.ERROR
    WARNING = Severity.WARNING
    INFO = Severity.INFO
    VERBOSE = Severity.VERBOSE

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


class IStreamWriter:
    def write(self, data: bytes) -> int:
        raise NotImplementedError


class IPluginRegistry:
    """The registry of one builder or runtime, which logs to that one's logger."""

    def __init__(self, _owner: str, _logger: ILogger) -> None:
        self.libraries: list[str] = []
        self._owner, self._logger = _owner, _logger

    def load_library(self, plugin_path: str) -> object | None:
        """None where it holds none, or one of them is registered already: so TensorRT's docs."""
        if plugin_path in self.libraries or b"ELF" not in Path(plugin_path).read_bytes()[:4]:
            self._logger.log(ILogger.ERROR, f"no plugins in {plugin_path}")
            return None
        calls.append(("plugins", (self._owner, plugin_path)))
        self.libraries.append(plugin_path)
        return object()


class Dims:
    def __init__(self, shape: list[int]) -> None:
        self._sizes = tuple(shape)

    def __getitem__(self, index: slice) -> tuple[int, ...]:
        return self._sizes[index]


class ITensor:
    def __init__(self, name: str, dtype: DataType, shape: list[int]) -> None:
        self.name, self.dtype, self.shape = name, dtype, Dims(shape)


class INetworkDefinition:
    def __init__(self) -> None:
        self._inputs: list[ITensor] = []
        self._outputs: list[ITensor] = []
        self._aliases: dict[str, str] = {}

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> ITensor:
        return self._inputs[index]

    def get_output(self, index: int) -> ITensor:
        return self._outputs[index]


class ParserError:
    def node_name(self) -> str:
        return "/layers.0/scatter"

    def node_operator(self) -> str:
        return "TensorScatter"

    def local_function_stack(self) -> list[str]:
        return ["SnapKVSelect"]

    def desc(self) -> str:
        return str(planted["parse_error"])


_TYPES = {1: "FLOAT", 10: "HALF", 16: "BF16", 7: "INT64", 6: "INT32", 9: "BOOL"}


def _tensor(value: onnx.ValueInfoProto) -> ITensor:
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    shape += [1] if planted.get("other_shape") == value.name else []
    return ITensor(value.name, DataType[_TYPES[kind.elem_type]], shape)


def _aliases(graph: onnx.GraphProto) -> dict[str, str]:
    """Outputs that TensorScatter writes, each into the input that it starts from."""
    scattered = {node.output[0]: node for node in graph.node if node.op_type == "TensorScatter"}
    outputs = [value.name for value in graph.output if value.name in scattered]
    return {name: scattered[name].input[0] for name in outputs}


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._logger = network, logger
        self.num_errors = 0

    def parse_from_file(self, model: str) -> bool:
        calls.append(("parse", model))
        if "recovered" in planted:
            self._logger.log(ILogger.ERROR, planted["recovered"])
        graph = onnx.load(model, load_external_data=False).graph
        network = self._network
        network._inputs = [_tensor(value) for value in graph.input]
        network._outputs = [_tensor(value) for value in graph.output]
        if "not_aliased" not in planted:
            network._aliases = _aliases(graph)
        self.num_errors = 2 if "parse_error" in planted else 0
        return not self.num_errors

    def get_error(self, index: int) -> ParserError:
        return ParserError()


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
        """True for a cache that is new or that this version wrote."""
        fits = not cache._content or cache._content.startswith(__version__.encode())
        if fits or ignore_mismatch:
            self._cache = cache
        return fits or ignore_mismatch

    def get_timing_cache(self) -> ITimingCache | None:
        return self._cache


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        self._registry = IPluginRegistry("builder", logger)

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
            self._logger.log(ILogger.ERROR, "another error")
            self._logger.log(ILogger.ERROR, planted["build_error"])
            return False
        inside = (
            config.plugins_to_serialize if BuilderFlag.VERSION_COMPATIBLE in config._flags else []
        )
        outside = [path for path in self._registry.libraries if path not in inside]
        content = {"aliases": network._aliases, "unlike": next(_number), "plugins": outside}
        plan = json.dumps(content).encode().ljust(20_000)
        pieces = (plan[at : at + 1000] for at in range(0, len(plan), 1000))
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


class ICudaEngine:
    def __init__(self, _content: bytes) -> None:
        self._aliases = json.loads(_content)["aliases"]
        self.device_memory_size_v2 = 4096

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._aliases.get(name)


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        self.engine_host_code_allowed = False
        self._registry = IPluginRegistry("runtime", logger)

    def get_plugin_registry(self) -> IPluginRegistry:
        return self._registry

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        calls.append(("load", self.engine_host_code_allowed))
        if "no_plan" in planted:
            self._logger.log(ILogger.ERROR, planted["no_plan"])
            return None
        if json.loads(bytes(serialized_engine))["plugins"] != self._registry.libraries:
            self._logger.log(ILogger.ERROR, "no creator of the plugin SnapKVSelect")
            return None
        return ICudaEngine(bytes(serialized_engine))


_reset()
