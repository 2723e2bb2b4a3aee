"""Rules beyond the table of operators: a file for each subject, a generator for each rule.

A rule takes (node, view, table) and yields a Problem for each fault. Operators that no language
model's graph has (Resize, NonMaxSuppression, loops, recurrent layers) have no rules.
"""

from collections.abc import Callable, Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.rules import attention, cache, layers, operators
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView

Rule = Callable[[NodeProto, GraphView, OperatorTable], Iterator[Problem]]

NODE_RULES: tuple[Rule, ...] = (
    operators.operator,
    operators.types,
    operators.inferred,
    operators.rank,
    attention.inputs_and_outputs,
    attention.attributes,
    attention.ranks,
    attention.mask,
    attention.heads,
    attention.fused,
    attention.shared,
    attention.causal_order,
    attention.lengths,
    cache.form,
    cache.place,
    cache.once,
    layers.topk_size,
    layers.topk_order,
    layers.known_inputs,
    layers.pooling,
    layers.scatter,
    layers.ranges,
    layers.sizes,
    layers.constant,
    layers.rotary_embedding,
    layers.quantization,
    layers.single_output,
)
