"""Rules of TensorScatter, which becomes IKVCacheUpdateLayer and writes a network input in place."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView, attribute, has

_IMPORTER = "onnx-tensorrt, onnxOpImporters.cpp of TensorRT 11"
_UPDATES = ("TensorScatter", "TRT_KVCacheUpdate")
_HEADER = "NvInfer.h of TensorRT 11.1, INetworkDefinition::addKVCacheUpdate"


def form(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """mode is linear; cache and update are 4-D, of one type; axis is -2."""
    if node.op_type != "TensorScatter":
        return
    mode = attribute(node, "mode", "linear")
    if mode != "linear":
        yield Problem(
            "scatter-mode",
            f"mode {mode} is not supported",
            "compute the cache slot in the graph and use mode linear",
            _IMPORTER,
        )
    cache, update = (view.tensor(name) for name in node.input[:2])
    if any(tensor.rank not in (4, None) for tensor in (cache, update)):
        yield Problem(
            "scatter-rank",
            f"cache and update have {cache.rank} and {update.rank} dimensions, and must have 4",
            "reshape them to [batch, heads, length, head size]",
            table.source,
        )
    axis = attribute(node, "axis", -2)
    if axis not in (-2, (cache.rank or 4) - 2):
        yield Problem(
            "scatter-axis",
            f"the axis is {axis}, and must be -2",
            "transpose the cache to [batch, heads, length, head size]",
            table.source,
        )
    if None not in (cache.type, update.type) and cache.type != update.type:
        yield Problem(
            "scatter-type",
            f"the cache is {cache.type}, the update {update.type}",
            "cast the update",
            _HEADER,
        )


def once(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Each cache is written by one node."""
    if node.op_type not in _UPDATES:
        return
    writers = [n for n in view.nodes if n.op_type in _UPDATES and n.input[0] == node.input[0]]
    if len(writers) > 1 and writers[0] is node:
        yield Problem(
            "scatter-once",
            f"the cache {node.input[0]} is written by {len(writers)} nodes",
            "write all rows by one TensorScatter",
            "TensorRT for RTX 1.7",
        )


def place(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The cache is a network input of fixed shape, and the result is a network output."""
    if node.op_type not in _UPDATES:
        return
    if node.input[0] not in view.inputs:
        yield Problem(
            "scatter-io",
            f"the cache {node.input[0]} is not an input of the network",
            "feed TensorScatter with the graph's own cache input",
            _HEADER,
        )
    if node.output[0] not in view.outputs:
        yield Problem(
            "scatter-io",
            f"the result {node.output[0]} is not an output of the network",
            "make it an output, and bind it to the cache input's memory",
            _HEADER,
        )
    shape = view.tensor(node.input[0]).shape
    if shape is None or None in shape or 0 in shape:
        yield Problem(
            "scatter-shape",
            f"the cache {node.input[0]} has no fixed shape: {shape}",
            "build it with fixed dimensions: the longest sequence is the cache's size",
            _HEADER,
        )
    if has(node.input, 2) and view.tensor(node.input[2]).type not in ("INT32", "INT64", None):
        yield Problem(
            "scatter-type",
            f"write_indices are {view.tensor(node.input[2]).type}",
            "cast them to INT64",
            _HEADER,
        )
