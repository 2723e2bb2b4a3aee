from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.method import GraphSurgery, MethodSurgery, Recipe, Size
from snapexport.graphs.passes.base import Pass, graph_output, node
from tests.methods.toy.spec import GRAPH, LAST, SUM, ToyOptions


@dataclass(frozen=True)
class ToySum:
    """Adds the output `toy_sum`, float32 [1]: the logits' sum, multiplied."""

    factor: int

    def apply(self, graph: gs.Graph) -> None:
        logits = graph_output(graph, names.LOGITS)
        (total,) = node(graph, "ReduceSum", [logits], keepdims=0)
        factor = gs.Constant("toy_factor", np.array([self.factor], np.float32))
        output = gs.Variable(SUM, np.float32, (1,))
        node(graph, "Mul", [total, factor], [output])
        graph.outputs.append(output)


class LastPosition:
    """Adds the output `last_position`, the prompt's length less one."""

    def apply(self, graph: gs.Graph) -> None:
        one = gs.Constant("one", np.array([1], np.int64))
        graph.outputs = [gs.Variable(LAST, np.int64, (1,))]
        node(graph, "Sub", [graph.inputs[0], one], graph.outputs)


def start(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    return gs.Graph(name=GRAPH, opset=prefill.opset, inputs=[length])


class ToySurgery(MethodSurgery):
    kinds: ClassVar = {
        GRAPH: GraphSurgery(lambda recipe, size: [LastPosition()], start, is_traced=False)
    }

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        factor = recipe.options.of(ToyOptions).toy_factor
        return (ToySum(factor),) if kind == "prefill" else ()


SURGERY = ToySurgery()
