"""Simplifies a traced graph: folds constants, removes nodes that do nothing, merges equal ones.

onnxscript's own `optimize` does the same with more rules. One of them, which makes a Split of two
slices, compares every pair of slices, in time that grows with the square of the number of layers:
it took a third of the build of a model of 30 layers, and finds nothing in ours.
"""

import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules import common as rules

_RULES = (
    rules.add_0_rule,
    rules.sub_0_rule,
    rules.mul_by_1_rule,
    rules.div_by_1_rule,
    rules.cast_cast_rule,
    rules.no_op_cast_rule,
    rules.no_op_expand_rule,
    rules.no_op_transpose_rule,
    rules.transpose_transpose_rule,
    rules.reshape_reshape_rule,
    rules.squeeze_reshape_1d_rule,
    rules.unsqueeze_unsqueeze_rule,
    rules.materialize_reshape_shape_rule,
    rules.collapse_slice_rule,
    rules.collapse_slice2_rule,
)
_ROUNDS = 2
"""What the first round leaves gives the second one something to fold."""


def simplify(model: ir.Model) -> None:
    """Simplify a graph in place. Weights have no data yet, and are left as they are."""
    for _ in range(_ROUNDS):
        optimizer.fold_constants_ir(model, onnx_shape_inference=True)
        RewritePass(_RULES)(model)
        passes.RemoveUnusedNodesPass()(model)
    for last in (
        passes.RemoveUnusedOpsetsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    ):
        last(model)
