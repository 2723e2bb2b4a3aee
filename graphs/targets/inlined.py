"""Puts the bodies of functions in the place of their calls, for runtimes that read no functions.

OpenVINO's reader of ONNX is one. A TopK also takes it long where the order of ties matters. Where a
body reads the indices of the K highest values, it sorts them afterwards, so that TopK need not.
"""

import onnx
from onnx import inliner
from onnx.helper import make_attribute

SORTED = "sorted"


def inline_functions(model: onnx.ModelProto) -> None:
    """Change the model's calls into the nodes of their functions."""
    for function in model.functions:
        _leave_unsorted(function)
    model.CopyFrom(without_functions(model))
    domains = {node.domain for node in model.graph.node}
    imports = [one for one in model.opset_import if one.domain in domains]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without calls. Its nodes are named by their function and place in the body."""
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for function in named.functions:
        for number, node in enumerate(function.node):
            node.name = f"{function.name}.{number}"
    return inliner.inline_local_functions(named)


def _leave_unsorted(function: onnx.FunctionProto) -> None:
    read = {name for node in function.node for name in node.input} | set(function.output)
    for node in function.node:
        if node.op_type == "TopK" and node.output[1] in read and _is_largest(node):
            kept = [one for one in node.attribute if one.name != SORTED]
            del node.attribute[:]
            node.attribute.extend([*kept, make_attribute(SORTED, 0)])


def _is_largest(topk: onnx.NodeProto) -> bool:
    return all(one.i for one in topk.attribute if one.name == "largest")
