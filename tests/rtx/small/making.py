"""Makes small graphs of one node and more."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

F16, BF16, F32 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
F64, I64, I32 = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32
BOOL, INT8, UINT8 = TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8
FP8 = TensorProto.FLOAT8E4M3FN

Value = tuple[str, int, Sequence[int | str] | None]
"""(name, dtype, shape). A name in place of a size: any size. No shape: of any rank."""


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    opset: int = 24,
    functions: Sequence[onnx.FunctionProto] = (),
    **weights: Any,
) -> onnx.ModelProto:
    """A graph of `nodes`. weights: its initializers, arrays or TensorProtos."""
    given, made = (
        [make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)
    )
    graph = make_graph(nodes, "one", given, made, [_tensor(k, v) for k, v in weights.items()])
    domains = sorted({""} | {node.domain for node in nodes})
    opsets = [make_opsetid(domain, 1 if domain else opset) for domain in domains]
    return make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=11)


def _tensor(name: str, value: Any) -> TensorProto:
    if isinstance(value, TensorProto):
        value.name = name
        return value
    return onnx.numpy_helper.from_array(np.asarray(value), name)


def single(
    operator: str,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: dict[str, Any] | None = None,
    opset: int = 24,
    **attributes: Any,
) -> onnx.ModelProto:
    """A graph of one node, which reads `inputs` and then `weights`."""
    weights = weights or {}
    names = [value[0] for value in inputs] + list(weights)
    node = make_node(operator, names, [value[0] for value in outputs], **attributes)
    return model([node], inputs, outputs, opset, **weights)


def unary(
    operator: str, dtype: int = F32, shape: Sequence[int] = (1, 2, 4, 64), **options: Any
) -> onnx.ModelProto:
    """An operator whose output is like its input. options: of `single`."""
    return single(operator, [("x", dtype, shape)], [("y", dtype, shape)], **options)
