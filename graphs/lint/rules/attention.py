"""Rules of Attention and TRT_Attention: inputs, outputs, attributes, masks and causal order."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.contract.targets import MEASURED_SHAPES
from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.rules.operators import STANDARD
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView, Shape, attribute, has

_HEADER = "NvInfer.h of TensorRT 11.1, IAttention"
_RTX = "TensorRT for RTX 1.7"
_BYTES = {"DOUBLE": 4, "FP32": 4, "FP16": 2, "BF16": 2}
"""fp64 is computed in fp32."""
_UNSUPPORTED_INPUTS = {4: "past_key", 5: "past_value", 6: "nonpad_kv_seqlen"}
_UNSUPPORTED_ATTRIBUTES = ("softcap", "softmax_precision", "qk_matmul_output_mode")


def _is_attention(node: NodeProto) -> bool:
    return node.op_type == "Attention" and node.domain in STANDARD


def inputs_and_outputs(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Attention has no cache and no valid length: TensorScatter and the mask replace them."""
    if not _is_attention(node):
        return
    for index, name in _UNSUPPORTED_INPUTS.items():
        if has(node.input, index):
            yield Problem(
                "attention-input",
                f"the input {name} is not supported, and may be ignored silently",
                "write the cache with TensorScatter and hide invalid cache slots by attn_mask",
                table.source,
            )
    if any(node.output[1:]):
        yield Problem(
            "attention-output",
            f"the node has {len(node.output)} outputs; TensorRT's Attention has one",
            "take the cache from TensorScatter",
            table.source,
        )


def attributes(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """TensorRT's Attention has no soft cap, and none of the other attributes."""
    for name in _UNSUPPORTED_ATTRIBUTES if _is_attention(node) else ():
        if attribute(node, name):
            yield Problem(
                "attention-attribute",
                f"the attribute {name} is not supported",
                "write attention as MatMul, Softmax and MatMul in this layer",
                f"{table.source}, and onnxOpCheckers.cpp",
            )


def ranks(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Query, key and value are [B,H,N,D]."""
    if not _is_attention(node):
        return
    shapes = [view.tensor(name).shape for name in node.input[:3]]
    if any(shape is not None and len(shape) != 4 for shape in shapes):
        yield Problem(
            "attention-rank",
            f"query, key and value have {[shape and len(shape) for shape in shapes]} dimensions, "
            "and must have 4",
            "reshape them to [batch, heads, length, head size]",
            table.source,
        )


def mask(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The mask is bool or has the scores' type, and is 4-D."""
    if not _is_attention(node) or not has(node.input, 3):
        return
    tensor, scores = view.tensor(node.input[3]), view.tensor(node.input[0]).type
    if tensor.rank not in (4, None):
        yield Problem(
            "attention-mask-rank",
            f"the mask has {tensor.rank} dimensions, and must have 4",
            "unsqueeze it to [batch, 1, rows, columns]",
            table.source,
        )
    if None not in (tensor.type, scores) and tensor.type not in ("BOOL", scores):
        yield Problem(
            "attention-mask",
            f"the mask is {tensor.type}, neither BOOL nor the queries' {scores}",
            f"cast the mask to BOOL or {scores}",
            f"{_HEADER}::setMask",
        )


def heads(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The query heads are a multiple of the KV heads, and the mask is as wide as the keys."""
    if not _is_attention(node):
        return
    query, key = (_shape4(view, name) for name in node.input[:2])
    if query and key and query[1] and key[1] and query[1] % key[1]:
        yield Problem(
            "attention-heads",
            f"{query[1]} query heads are no multiple of {key[1]} KV heads",
            "repeat the KV heads",
            _RTX,
        )
    mask_shape = view.tensor(node.input[3]).shape if has(node.input, 3) else None
    if mask_shape and key and mask_shape[-1] not in (1, key[2], None):
        yield Problem(
            "attention-mask",
            f"the mask has {mask_shape[-1]} columns for {key[2]} keys",
            "make it as wide as the keys",
            _RTX,
        )


def fused(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """There is a fused kernel, unless the node may be decomposed."""
    if not _is_attention(node) or attribute(node, "TRT_decomposable", 0):
        return
    query, key = (_shape4(view, name) for name in node.input[:2])
    value_bytes = _BYTES.get(view.tensor(node.input[0]).type or "")
    if not (query and key and value_bytes) or None in (*query, *key):
        return
    rows, slots, head_dim = query[2] or 0, key[2] or 0, query[3] or 0
    if not MEASURED_SHAPES.fits(value_bytes, rows, slots, head_dim):
        yield Problem(
            "attention-fused",
            f"no fused kernel for {rows} rows over {slots} keys of {head_dim} values in "
            f"{view.tensor(node.input[0]).type}: the engine's build fails",
            "build with --target tensorrt or tensorrt-rtx, which compose such attention of single "
            "operators, or with --trt-decomposable",
            _RTX,
        )


def shared(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The parser multiplies queries and keys by the root of the scale: no tensor twice by one."""
    scale = attribute(node, "scale")
    if not _is_attention(node) or scale == 1.0:
        return
    alike = [n for n in view.nodes if _is_attention(n) and attribute(n, "scale") == scale]
    scaled = [name for n in alike for name in n.input[:2]]
    for name in node.input[:2]:
        if scaled.count(name) > 1:
            yield Problem(
                "attention-shared",
                f"{name} is scaled twice alike, as queries or keys: the engine's build ends the "
                "process",
                "multiply the queries by the scale before, and set scale to 1",
                _RTX,
            )
            return


def _shape4(view: GraphView, name: str) -> Shape | None:
    """The shape of a 4-D tensor."""
    shape = view.tensor(name).shape
    return shape if shape and len(shape) == 4 else None


def causal_order(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """is_causal counts from the first column, and excludes a mask."""
    if not _is_attention(node) or not attribute(node, "is_causal", 0):
        return
    if has(node.input, 3):
        yield Problem(
            "attention-causal",
            "is_causal and a mask are given together: the engine's build fails",
            "put the causal order into the mask",
            f"{_HEADER}::setCausalKind",
        )
    shapes = [view.tensor(name).shape for name in node.input[:2]]
    rows, columns = (shape[2] if shape and len(shape) == 4 else None for shape in shapes)
    if rows != columns:
        yield Problem(
            "attention-causal",
            f"is_causal with {rows} rows and {columns} columns: row i would see the first i + 1 "
            "columns, wherever the chunk begins",
            "put the causal order into the mask",
            "NvInfer.h of TensorRT 11.1, INetworkDefinition::addAttention",
        )


def lengths(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """TRT_Attention's kv_lengths are reported to give wrong tokens without an error."""
    if node.op_type == "TRT_Attention" and has(node.input, 7):
        yield Problem(
            "attention-lengths",
            "kv_lengths gave wrong tokens silently",
            "hide invalid cache slots by the mask",
            "github.com/NVIDIA/TensorRT-Model-Connect, issues 1035 and 1048",
        )
