"""What a graph's inputs and outputs weigh, and which of them are one memory."""

import math

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, GraphName, TensorSpec

ITEM_BYTES = {"bool": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4}

OF_TENSORRT = {
    "BOOL": "bool",
    "INT32": "int32",
    "INT64": "int64",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FLOAT": "float32",
}
"""The manifest's names of types, by TensorRT's (the members of its DataType)."""


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of one input or output."""
    return math.prod(spec.shape) * ITEM_BYTES[spec.dtype]


def in_place(name: GraphName, graph: GraphEntry) -> dict[str, str]:
    """Cache outputs, each with the input in whose memory it has to be written.

    The hand-over reads caches of one length and writes those of another: it shares none.
    """
    inputs = {spec.name for spec in graph.inputs if name != "compress"}
    outputs = [spec.name for spec in graph.outputs if names.is_present(spec.name)]
    pairs = {present: names.past_of(present) for present in outputs}
    return {present: past for present, past in pairs.items() if past in inputs}
