"""Puts TensorRT's own mark on Attention where a build asks for it. No other runtime reads it.

Attention becomes one fused kernel, or the engine's build fails; with the mark TensorRT may use
several (IAttention::setDecomposable in NvInfer.h; the parser's attribute is TRT_decomposable).
"""

import onnx

from snapexport.contract.graph_options import GraphOptions

_ATTRIBUTE = "TRT_decomposable"


def allow_decomposition(model: onnx.ModelProto, options: GraphOptions) -> None:
    """Mark every Attention, if the options say so."""
    for node in model.graph.node if options.trt_decomposable else ():
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute(_ATTRIBUTE, 1))
