"""The FAKE module tensorrt's networks: what its parser reads of an ONNX graph, and plugins.

Tests plant what goes wrong, and read what was asked; both are only changed in place.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

from tests.fakes.tensorrt_types import DataType, Dims, ILogger, OnnxParserFlag

planted: dict[str, Any] = {}
"""parse_error, build_error, no_plan: a message; recovered: one of an error that stops nothing.
not_aliased. other_shape: of the tensor so named. steps, step_seconds: of a build."""
calls: list[tuple[str, Any]] = []
"""What was asked of the fake, and which graphs ran."""
_ONNX = {1: "FLOAT", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}


class IPluginRegistry:
    def __init__(self, _owner: str, _logger: ILogger) -> None:
        self._libraries: list[str] = []
        self._owner, self._logger = _owner, _logger

    def load_library(self, plugin_path: str) -> object | None:
        """None where it holds none, or one of them is registered already: so TensorRT's docs."""
        if plugin_path in self._libraries or b"ELF" not in Path(plugin_path).read_bytes()[:4]:
            self._logger.log(ILogger.ERROR, f"no plugins in {plugin_path}")
            return None
        calls.append(("plugins", (self._owner, plugin_path)))
        self._libraries.append(plugin_path)
        return object()


class ITensor:
    def __init__(self, name: str, dtype: DataType, shape: Dims) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape


def tensors_of(values: Iterable[onnx.ValueInfoProto]) -> dict[str, ITensor]:
    kinds = {value.name: value.type.tensor_type for value in values}
    return {
        name: ITensor(
            name,
            DataType[_ONNX[kind.elem_type]],
            Dims(dim.dim_value for dim in kind.shape.dim),
        )
        for name, kind in kinds.items()
    }


class INetworkDefinition:
    def __init__(self) -> None:
        self._graph, self._aliases = "", dict[str, str]()
        self._inputs, self._outputs = list[ITensor](), list[ITensor]()

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
        return str(planted.get("parse_error", "the weights don't fit"))


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._logger = network, logger
        self.num_errors = 0

    def set_flag(self, flag: OnnxParserFlag) -> None:
        calls.append(("parser_flag", flag))

    def parse_from_file(self, model: str) -> bool:
        calls.append(("parse", model))
        if "recovered" in planted:
            self._logger.log(ILogger.ERROR, planted["recovered"])
        graph = onnx.load(model, load_external_data=False).graph
        network = self._network
        network._graph = model
        network._inputs = list(tensors_of(graph.input).values())
        network._outputs = list(tensors_of(graph.output).values())
        for tensor in network._inputs + network._outputs:
            if tensor.name == planted.get("other_shape"):
                tensor.shape = Dims((*tensor.shape, 1))
        scatters = {node.output[0]: node for node in graph.node if node.op_type == "TensorScatter"}
        if "not_aliased" not in planted:
            written = [tensor.name for tensor in network._outputs if tensor.name in scatters]
            network._aliases = {name: scatters[name].input[0] for name in written}
        self.num_errors = 2 if "parse_error" in planted else 0
        return not self.num_errors

    def get_error(self, index: int) -> ParserError:
        return ParserError()
