"""Fixes the number of batch slots in a trace of decode, which has it as a dimension by name."""

import onnx_ir as ir

BATCH = "batch"
"""The name of the dimension."""


def with_batch(model: ir.Model, batch: int) -> ir.Model:
    """A copy of a trace, for `batch` batch slots. `link` folds what follows from their number."""
    fixed = model.clone()
    for value in (*fixed.graph.inputs, *(v for node in fixed.graph for v in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([_size(dimension, batch) for dimension in value.shape])
    return fixed


def _size(dimension: int | ir.SymbolicDim, batch: int) -> int:
    if isinstance(dimension, int):
        return dimension
    size = dimension.evaluate({BATCH: batch})  # "batch", or "4*batch" where tokens are flattened
    assert isinstance(size, int), dimension
    return size
