"""Attention: masks, causal order, attributes, further inputs and outputs."""

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx.helper import make_node, make_tensor_value_info

from tests.rtx.small.making import BF16, BOOL, F16, F32, F64, I32, I64, Value, model, unary

Named = Iterator[tuple[str, onnx.ModelProto]]
SQUARE = [1, 1, 32, 32]


def attention(
    query: Sequence[int] = (1, 4, 32, 64),
    key: Sequence[int] = (1, 2, 32, 64),
    dtype: int = F16,
    mask: Value | None = None,
    more: Sequence[Value | None] = (),
    outputs: Sequence[Value | None] = (),
    opset: int = 24,
    **attributes: Any,
) -> onnx.ModelProto:
    """One Attention. more: inputs behind the mask; outputs: behind the first. None: left out."""
    states: list[Value] = [("q", dtype, query), ("k", dtype, key), ("v", dtype, key)]
    read = [*states, mask, *more] if more else [*states, *([mask] if mask else [])]
    made: list[Value | None] = [("y", dtype, query), *outputs]
    names = ([value[0] if value else "" for value in values] for values in (read, made))
    node = make_node("Attention", *names, **attributes)
    given, got = ([value for value in values if value] for values in (read, made))
    return model([node], given, got, opset)


def graphs() -> Named:
    yield from _plain()
    yield from _causal()
    yield from _masks()
    yield from _attributes()
    yield from _caches()


def _plain() -> Named:
    yield "attention", attention()
    yield "attention in bf16", attention(dtype=BF16)
    yield "attention in fp32", attention(dtype=F32)
    yield "attention in fp64", attention(dtype=F64)
    yield "attention of opset 23", attention(opset=23)
    yield "3 query heads for 2 KV heads", attention((1, 3, 32, 64))
    three = {"q_num_heads": 4, "kv_num_heads": 2}
    yield "3-D queries and keys", attention((1, 32, 256), (1, 32, 128), **three)


def _causal() -> Named:
    yield "is_causal", attention(is_causal=1)
    yield "a chunk under is_causal", attention((1, 4, 8, 64), is_causal=1)
    yield "one row under is_causal", attention((1, 4, 1, 64), is_causal=1)
    yield "is_causal and a mask", attention(mask=("m", BOOL, SQUARE), is_causal=1)


def _masks() -> Named:
    yield "a bool mask", attention(mask=("m", BOOL, SQUARE))
    yield "a mask in fp16", attention(mask=("m", F16, SQUARE))
    yield "a mask in fp32 for fp16", attention(mask=("m", F32, SQUARE))
    yield "a mask in int64", attention(mask=("m", I64, SQUARE))
    yield "a mask for each head", attention(mask=("m", BOOL, [1, 4, 32, 32]))
    two = {"query": (2, 4, 32, 64), "key": (2, 2, 32, 64)}
    yield "one mask for a batch of 2", attention(**two, mask=("m", BOOL, SQUARE))
    yield "a mask for each of a batch of 2", attention(**two, mask=("m", BOOL, [2, 1, 32, 32]))
    yield "one mask for all rows", attention(mask=("m", BOOL, [1, 1, 1, 32]))
    yield "a mask of half the width", attention(mask=("m", BOOL, [1, 1, 32, 16]))
    yield "a mask of one column", attention(mask=("m", BOOL, [1, 1, 32, 1]))
    yield "a 2-D mask", attention(mask=("m", BOOL, [32, 32]))
    yield "a 3-D mask", attention(mask=("m", BOOL, [4, 32, 32]))


def _attributes() -> Named:
    yield "softcap", attention(softcap=30.0)
    yield "softcap of 0", attention(softcap=0.0)
    yield "softmax_precision", attention(softmax_precision=1)
    yield "qk_matmul_output_mode of 0", attention(qk_matmul_output_mode=0)
    yield "scale", attention(scale=0.5)
    for scale in (1.0, 0.5):
        twice = attention(scale=scale)
        twice.graph.node.append(make_node("Attention", ["q", "k", "v"], ["z"], scale=scale))
        twice.graph.output.append(make_tensor_value_info("z", F16, [1, 4, 32, 64]))
        yield f"two attentions over the same keys, scale {scale}", twice
        alone = unary("Attention", F16, scale=scale)
        alone.graph.node[0].input.extend(["x", "x"])
        yield f"queries that are the keys, scale {scale}", alone


def _caches() -> Named:
    past: list[Value] = [("pk", F16, [1, 2, 16, 64]), ("pv", F16, [1, 2, 16, 64])]
    present: list[Value] = [("nk", F16, [1, 2, 48, 64]), ("nv", F16, [1, 2, 48, 64])]
    yield "past keys and values", attention(more=past, outputs=present)
    same: list[Value] = [("nk", F16, [1, 2, 32, 64]), ("nv", F16, [1, 2, 32, 64])]
    yield "present keys and values alone", attention(outputs=same)
    scores: Value = ("s", F16, [1, 4, 32, 32])
    yield "scores as an output", attention(outputs=(None, None, scores), qk_matmul_output_mode=1)
    lengths: Value = ("n", I64, [1])
    yield "valid lengths of keys", attention(more=(None, None, lengths))
    yield from _of_tensorrt()
    packed: list[Value] = [
        ("q", F16, [1, 1, 256]),
        ("k", F16, [1, 1, 128]),
        ("v", F16, [1, 1, 128]),
    ]
    own = {"domain": "com.microsoft", "num_heads": 4, "kv_num_heads": 2}
    node = make_node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "n", "t"], ["y"], **own)
    counts: list[Value] = [("n", I64, [1]), ("t", I64, [])]
    yield "GroupQueryAttention", model([node], packed + past + counts, [("y", F16, [1, 1, 256])])


def _of_tensorrt() -> Named:
    """TensorRT's own operator: docs/TRT_custom_ops.md of github.com/onnx/onnx-tensorrt."""
    for name, more in (("", []), (", lengths of keys", [None] * 3 + [LENGTHS])):
        graph = attention(more=more, scale=1.0)
        graph.graph.node[0].op_type = "TRT_Attention"
        yield f"TRT_Attention{name}", graph


LENGTHS: Value = ("n", I32, [1])
