"""Adds the attribute TRT_decomposable to Attention, for --trt-decomposable.

Without it TensorRT uses one fused kernel or fails to build the engine; with it TensorRT may use
several kernels (IAttention::setDecomposable in NvInfer.h). No other runtime knows the attribute.
"""

import onnx

from snapexport.contract.graph_options import GraphOptions

_ATTRIBUTE = "TRT_decomposable"


def allow_decomposition(model: onnx.ModelProto, options: GraphOptions) -> None:
    """Mark every Attention of a build with --trt-decomposable."""
    for node in model.graph.node if options.trt_decomposable else ():
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute(_ATTRIBUTE, 1))
