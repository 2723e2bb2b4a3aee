"""Causal depthwise convolution behind a state: the last columns of what came before."""

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import computed_range, fresh, int64s, node


def causal_conv(
    graph: gs.Graph,
    x: gs.Tensor,
    weight: gs.Tensor,
    bias: gs.Tensor | None,
    past: gs.Tensor,
    valid: gs.Tensor | None,
    present: gs.Tensor,
) -> gs.Tensor:
    """The convolution of past [B,D,k-1] and x [B,D,C], with weight [D,1,k] and bias [D]: [B,D,C].

    present: becomes the last k - 1 columns before x's column `valid`, an int64 [1]; None: of all.
    It may have the buffer of `past` in ONNX Runtime, which joins them first. An engine's kernel
    may write the one while it reads the other.
    """
    _, channels, columns = x.shape
    shape = (*x.shape[:2], columns + past.shape[2])
    joined = gs.Variable(fresh(graph, "joined"), x.dtype, shape)
    node(graph, "Concat", [past, x], [joined], axis=2)
    _keep(graph, joined, columns, valid, present)
    out = gs.Variable(fresh(graph, "convolved"), x.dtype, x.shape)
    if columns == 1:
        return _one_column(graph, joined, weight, bias, out)
    inputs = [joined, weight, *([] if bias is None else [bias])]
    return node(graph, "Conv", inputs, [out], group=channels)[0]


def _keep(
    graph: gs.Graph, joined: gs.Tensor, columns: int, valid: gs.Tensor | None, present: gs.Tensor
) -> None:
    end = joined.shape[2]
    if valid is None:
        node(graph, "Slice", [joined, *(int64s(graph, n) for n in (columns, end, 2))], [present])
        return
    # Not a Slice: its size would depend on values of the graph's inputs.
    (index,) = node(graph, "Add", [valid, computed_range(graph, 0, end - columns)])
    node(graph, "Gather", [joined, index], [present], axis=2)


def _one_column(
    graph: gs.Graph,
    joined: gs.Tensor,
    weight: gs.Tensor,
    bias: gs.Tensor | None,
    out: gs.Tensor,
) -> gs.Tensor:
    """Products and sums: Conv takes four times as long in ONNX Runtime.

    The bias is one of them: OpenVINO 2026.4 adds another channel's to sums of a batch.
    """
    batch, channels, width = joined.shape
    (rows,) = node(graph, "Reshape", [weight, int64s(graph, 1, channels, width)])
    (products,) = node(graph, "Mul", [joined, rows])
    if bias is not None:
        (column,) = node(graph, "Reshape", [bias, int64s(graph, 1, channels, 1)])
        each = node(graph, "Expand", [column, int64s(graph, batch, channels, 1)])
        (products,) = node(graph, "Concat", [products, *each], axis=2)
    return node(graph, "ReduceSum", [products, int64s(graph, 2)], [out], keepdims=1)[0]
