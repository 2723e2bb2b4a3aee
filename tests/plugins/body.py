"""Runs the bodies of the ONNX functions in ONNX Runtime, as references of the kernels."""

from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime as ort
import torch
from torch import Tensor

from snapexport.graphs.functions.vote import DEFAULTS
from tests.graphs.bodies import function


def call_body(
    name: str,
    inputs: list[Tensor],
    attributes: dict[str, Any],
    vote: Mapping[str, str] = DEFAULTS,
) -> list[Tensor]:
    """Outputs for the inputs, in their order; vote: SnapKVSelect's options."""
    kernel = attributes.get("pool_kernel", [1, 1])[1]
    proto = function(name, vote, kernel, softcapped=bool(attributes.get("softcap")))
    feeds = {f"input_{index}": one.numpy() for index, one in enumerate(inputs)}
    node = onnx.helper.make_node(
        name, list(feeds), list(proto.output), domain="snapexport", **attributes
    )
    types = [onnx.helper.np_dtype_to_tensor_dtype(one.dtype) for one in feeds.values()]
    given = [
        onnx.helper.make_tensor_value_info(key, kind, feeds[key].shape)
        for key, kind in zip(feeds, types, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=output) for output in proto.output]
    graph = onnx.helper.make_graph([node], "one", given, outputs)
    opsets = [onnx.helper.make_opsetid("", 24), onnx.helper.make_opsetid("snapexport", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=[proto], ir_version=12)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(one) for one in session.run(None, feeds)]
