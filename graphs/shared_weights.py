"""Makes a model's matrices inputs, for --share-weights.

Graphs whose weights are inputs hold none themselves: whoever runs several of them binds one copy.
Vectors (norms and biases) stay in the graph, where a compiler can merge them into other operators.
"""

import onnx
from onnx.helper import make_tensor_value_info


def share_weights(model: onnx.ModelProto) -> None:
    """Replace each weight with two dimensions or more by an input of its name and shape."""
    graph, kept = model.graph, []
    for weight in graph.initializer:
        if weight.data_location == onnx.TensorProto.EXTERNAL and len(weight.dims) > 1:
            shared = make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
            graph.input.append(shared)
        else:
            kept.append(weight)
    del graph.initializer[:]
    graph.initializer.extend(kept)
