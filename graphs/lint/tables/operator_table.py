"""The shape of a version's table."""

from collections.abc import Mapping
from dataclasses import dataclass

FLOATS = "FP32 FP16 BF16"
INTS = "INT32 INT64"


@dataclass(frozen=True)
class OperatorTable:
    """One version of TensorRT's ONNX parser.

    opsets: lowest and highest. types: for each operator those of the tensor it works on. own:
    TensorRT's operators outside of ONNX.
    """

    version: str
    source: str
    opsets: tuple[int, int]
    types: Mapping[str, frozenset[str]]
    own: frozenset[str]


def typed(groups: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Types -> operators, both as words in a string, turned around."""
    return {
        operator: frozenset(types.split())
        for types, operators in groups.items()
        for operator in operators.split()
    }
