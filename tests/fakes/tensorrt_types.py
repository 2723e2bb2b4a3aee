"""The FAKE module tensorrt's enums, and the classes that its callers implement."""

from enum import IntEnum


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    BF16 = 7
    INT64 = 8


NUMPY = dict(zip(DataType, "f4 f2 i1 i4 ? u2 i8".split(), strict=True))


class BuilderFlag(IntEnum):
    REFIT = 4
    TF32 = 6
    VERSION_COMPATIBLE = 12
    STRIP_PLAN = 18
    REFIT_IDENTICAL = 19


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 0


class HardwareCompatibilityLevel(IntEnum):
    NONE = 0
    AMPERE_PLUS = 1
    SAME_COMPUTE_CAPABILITY = 2


class MemoryPoolType(IntEnum):
    WORKSPACE = 0


class ExecutionContextAllocationStrategy(IntEnum):
    STATIC = 0
    USER_MANAGED = 2


class TensorIOMode(IntEnum):
    INPUT = 1
    OUTPUT = 2


class TensorFormat(IntEnum):
    LINEAR = 0
    CHW16 = 4
    HWC = 8


class OnnxParserFlag(IntEnum):
    NATIVE_INSTANCENORM = 0
    ENABLE_PLUGIN_OVERRIDE = 3


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def __init__(self) -> None:
        self._ready = True

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


class IOutputAllocator:
    """Polygraphy's gives memory for what shares no input's."""

    def reallocate_output_async(
        self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
    ) -> int:
        raise NotImplementedError

    def notify_shape(self, tensor_name: str, shape: "Dims") -> None:
        raise NotImplementedError


class Dims(tuple[int, ...]):
    pass
