"""Links a traced graph to the placed weights: initializers become references into their files.

The graph is simplified before: constants are folded, nodes that do nothing are removed, equal ones
are merged. onnxscript's own `optimize` does the same with more rules. One of them, which makes a
Split of two slices, compares every pair of slices, in time that grows with the square of the number
of layers: it took a third of the build of a model of 30 layers, and finds nothing in ours.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules import common as rules
from torch._subclasses.fake_tensor import FakeTensor

from snapexport.contract.manifest import WEIGHTS
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.ranks import stored_name
from snapexport.exporter.quiet import quiet
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan

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
"""The first round leaves something to fold for the second one."""


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


@dataclass(frozen=True)
class Traced:
    """A traced graph. sources: {initializer without data: checkpoint tensor}."""

    model: ir.Model
    sources: dict[str, str]

    @classmethod
    def of(cls, model: ir.Model, decoder: Decoder) -> "Traced":
        """The checkpoint has the tensors in these shapes: `shapes.require_tensors` comes first."""
        tied = decoder.names.tied
        names = [name for name, value in model.graph.initializers.items() if _is_fake(value)]
        return cls(model, {name: tied.get(name, stored_name(name)) for name in names})

    def sources_of(self, dtype: ir.DataType) -> set[str]:
        """The checkpoint tensors that the trace reads as `dtype`."""
        initializers = self.model.graph.initializers
        return {source for n, source in self.sources.items() if initializers[n].dtype == dtype}


def tensors_of(dtype: ir.DataType, traced: Iterable[Traced]) -> set[str]:
    """The checkpoint tensors that traces read as `dtype`."""
    return set[str]().union(*(trace.sources_of(dtype) for trace in traced))


def _is_fake(value: ir.Value) -> bool:
    return isinstance(getattr(value.const_value, "raw", None), FakeTensor)


def link(model: ir.Model, sources: dict[str, str], placed: dict[str, TensorSpan]) -> None:
    """Fold small constants, and point every initializer of `sources` at its bytes."""
    for name in sources:
        # Without data the optimizer folds no reader of a weight, and merges no two weights.
        model.graph.initializers[name].const_value = None
    with quiet():
        simplify(model)
    passes.ClearMetadataAndDocStringPass()(model)
    for name, source in sources.items():
        value = model.graph.initializers[name]
        value.const_value = _reference(source, placed[source], value)
        value.name = source


def _reference(name: str, span: TensorSpan, value: ir.Value) -> ir.ExternalTensor:
    """The bytes of a file as the initializer's elements; two of 4 bits are in a byte."""
    dtype, shape = ir.DataType[BY_SAFETENSORS[span.dtype].onnx], ir.Shape(span.shape)
    if value.dtype is not None and value.shape is not None and value.dtype.bitwidth < 8:
        dtype, shape = value.dtype, value.shape
    return ir.ExternalTensor(
        location=f"{WEIGHTS}/{span.file.name}",
        offset=span.offset,
        length=span.nbytes,
        dtype=dtype,
        shape=shape,
        name=name,
        base_dir=span.file.parent.parent,
    )
