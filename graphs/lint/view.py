"""Shows a graph to the rules: functions inlined, types and shapes of tensors where known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

Shape = tuple[int | None, ...]

_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.BFLOAT16: "BF16",
    onnx.TensorProto.FLOAT8E4M3FN: "FP8",
    onnx.TensorProto.FLOAT4E2M1: "FP4",
}
"""TensorRT's names, where they differ from ONNX's."""


@dataclass(frozen=True)
class Tensor:
    """`type` as TensorRT spells it. None: unknown, also for a dimension."""

    type: str | None = None
    shape: Shape | None = None

    @property
    def is_known(self) -> bool:
        """Whether type and rank are known."""
        return None not in (self.type, self.shape)

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)


@dataclass
class GraphView:
    """One model, its nodes in topological order.

    invalid: the error of ONNX's inference of types and shapes, if it failed.
    """

    model: onnx.ModelProto
    nodes: Sequence[NodeProto] = field(init=False)
    inputs: dict[str, Tensor] = field(init=False)
    outputs: dict[str, Tensor] = field(init=False)
    invalid: str | None = None

    def __post_init__(self) -> None:
        inlined = self._inferred(_inlined(self.model)).graph
        self.nodes = inlined.node
        self.inputs = {value.name: _tensor(value) for value in inlined.input}
        self.outputs = {value.name: _tensor(value) for value in inlined.output}
        others = {value.name: _tensor(value) for value in inlined.value_info}
        self._tensors: dict[str, Tensor] = others | self.outputs | self.inputs
        self._initializers = {tensor.name: tensor for tensor in inlined.initializer}

    def tensor(self, name: str) -> Tensor:
        """Type and shape of a tensor. Both are None for a missing optional input."""
        if name in self._initializers:
            proto = self._initializers[name]
            return Tensor(_type_name(proto.data_type), tuple(proto.dims))
        return self._tensors.get(name, Tensor())

    def is_weight(self, name: str) -> bool:
        """Whether it is an initializer or a Constant's output."""
        return name in self._initializers or name in self._constants

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Values of a weight; None for other tensors, and for external data."""
        if name in self._constants:
            return np.asarray(self._constants[name])
        tensor = self._initializers.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return onnx.numpy_helper.to_array(tensor)

    def is_fixed(self, name: str) -> bool:
        """Whether it is computed from weights and shapes alone."""
        return name in self._initializers or name in self._fixed

    @cached_property
    def _constants(self) -> dict[str, Any]:
        return {n.output[0]: _value(n) for n in self.nodes if n.op_type == "Constant"}

    def _inferred(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """`model` with inferred types and shapes; `model` itself if inference fails."""
        from onnx import shape_inference

        try:
            return shape_inference.infer_shapes(model, data_prop=True)
        except shape_inference.InferenceError as error:
            self.invalid = str(error)
            return model

    @cached_property
    def _fixed(self) -> set[str]:
        fixed: set[str] = set()
        for node in self.nodes:
            known = all(not name or self.is_weight(name) or name in fixed for name in node.input)
            if known or node.op_type in ("Shape", "Size"):
                fixed.update(node.output)
        return fixed


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with the functions' bodies in place of their calls."""
    from onnx import inliner

    named = onnx.ModelProto()
    named.CopyFrom(model)
    for function in named.functions:
        for number, node in enumerate(function.node):
            node.name = f"{function.name}.{number}"
    return inliner.inline_local_functions(named)


def _value(constant: NodeProto) -> Any:
    value = onnx.helper.get_attribute_value(constant.attribute[0])
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return Tensor(_type_name(tensor.elem_type))
    return Tensor(_type_name(tensor.elem_type), tuple(_dims(tensor.shape)))


def _dims(shape: onnx.TensorShapeProto) -> Iterator[int | None]:
    for dim in shape.dim:
        yield dim.dim_value if dim.HasField("dim_value") else None


def _type_name(code: int) -> str | None:
    if code == onnx.TensorProto.UNDEFINED:
        return None
    return _TYPES.get(code) or onnx.TensorProto.DataType.Name(code)


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """An attribute's value; strings as str."""
    for entry in node.attribute:
        if entry.name == name:
            value = onnx.helper.get_attribute_value(entry)
            return value.decode() if isinstance(value, bytes) else value
    return default


def has(names: Sequence[str], index: int) -> bool:
    """Whether an optional input or output is there."""
    return len(names) > index and bool(names[index])
