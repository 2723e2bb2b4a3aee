"""TensorRT's own mark on Attention, for builds that ask for it. Nobody else reads such a graph.

Attention becomes one fused kernel, or the engine's build fails; with the mark TensorRT may use
several (IAttention::setDecomposable in NvInfer.h; the parser's attribute is TRT_decomposable).
"""

import onnx

_ATTRIBUTE = "TRT_decomposable"


def allow_decomposition(model: onnx.ModelProto) -> None:
    """Mark every Attention."""
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute(_ATTRIBUTE, 1))
