"""Adds to a graph the part of sampling that needs the whole vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.method import MethodSurgery
from snapexport.graphs.passes.base import Pass, SurgeryError, int64s, node
from snapexport.graphs.recipe import Recipe, Size
from snapexport.methods.top_tokens.spec import OUTPUTS, TopTokensOptions


@dataclass(frozen=True)
class TopTokens:
    """Adds the outputs for the `count` likeliest tokens and their probabilities.

    Input: temperature float32 [B]. Outputs: top_tokens int64 [B,N] and top_logits float32 [B,N], by
    descending logit, and log_normalizer float32 [B] = logsumexp(logits / temperature). The logits
    [B,V] stay an output. Of logits [B,C,V] the outputs are [B,C,N] and [B,C].
    """

    count: int

    def apply(self, graph: gs.Graph) -> None:
        logits = _logits(graph)
        rows = logits.shape[:-1]
        temperature = gs.Variable(names.TEMPERATURE, np.float32, rows[:1])
        tokens = gs.Variable(OUTPUTS.tokens, np.int64, (*rows, self.count))
        values = gs.Variable(OUTPUTS.logits, np.float32, (*rows, self.count))
        normalizer = gs.Variable(OUTPUTS.log_normalizer, np.float32, rows)
        node(graph, "TopK", [logits, int64s(graph, self.count)], [values, tokens], axis=-1)
        _log_sum_exp(graph, logits, values, temperature, normalizer)
        graph.inputs.append(temperature)
        graph.outputs.extend([tokens, values, normalizer])


def _logits(graph: gs.Graph) -> gs.Tensor:
    found = [tensor for tensor in graph.outputs if tensor.name == names.LOGITS]
    if [tensor.dtype for tensor in found] != [np.float32]:
        raise SurgeryError(f"the graph's logits are {found}, not one float32 tensor")
    return found[0]


def _log_sum_exp(
    graph: gs.Graph,
    logits: gs.Tensor,
    descending: gs.Tensor,
    temperature: gs.Tensor,
    normalizer: gs.Tensor,
) -> None:
    """normalizer = max / t + log(sum(exp((logits - max) / t))).

    NaN if a logit is NaN or the maximum is infinite. The maximum is the first of the top logits.
    """
    last = int64s(graph, -1)
    (maximum,) = node(graph, "Slice", [descending, int64s(graph, 0), int64s(graph, 1), last])
    inner = last if len(logits.shape) == 2 else int64s(graph, -2, -1)
    (divisor,) = node(graph, "Unsqueeze", [temperature, inner])
    (below,) = node(graph, "Sub", [logits, maximum])
    (scaled,) = node(graph, "Div", [below, divisor])
    (weights,) = node(graph, "Exp", [scaled])
    (log_total,) = node(graph, "Log", [_sum(graph, weights, logits.shape)])
    (offset,) = node(graph, "Div", [maximum, divisor])
    (column,) = node(graph, "Add", [offset, log_total])
    node(graph, "Squeeze", [column, last], [normalizer])


def _sum(graph: gs.Graph, weights: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
    """Sum [...,V] to [...,1], in two levels: within blocks, then over the blocks.

    A plain fp32 sum loses small weights after a large one: we saw 4e-5 of the sum missing.
    """
    *rows, vocabulary = shape
    block = next(n for n in range(isqrt(vocabulary), 0, -1) if vocabulary % n == 0)
    blocks = int64s(graph, *rows, vocabulary // block, block)
    (blocked,) = node(graph, "Reshape", [weights, blocks])
    (sums,) = node(graph, "ReduceSum", [blocked, int64s(graph, -1)], keepdims=0)
    (total,) = node(graph, "ReduceSum", [sums, int64s(graph, -1)], keepdims=1)
    return total


@dataclass(frozen=True)
class WhereLogits:
    """Changes a graph that has logits: chunks inside a prompt have none."""

    change: TopTokens

    def apply(self, graph: gs.Graph) -> None:
        if any(tensor.name == names.LOGITS for tensor in graph.outputs):
            self.change.apply(graph)


class TopTokensSurgery(MethodSurgery):
    """Every graph with logits outputs the likeliest tokens too."""

    def after_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        return (WhereLogits(TopTokens(recipe.options.of(TopTokensOptions).top_tokens)),)


SURGERY = TopTokensSurgery()
