"""The limits of the fused attention kernel in `contract/targets.py` are the real builder's."""

from pathlib import Path

import pytest
from onnx import TensorProto, save
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from snapexport.contract.targets import MEASURED_SHAPES
from tests.rtx.library import ask

FP32, FP16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
BYTES = {FP32: 4, FP16: 2, BF16: 2}


def attention(path: Path, dtype: int, rows: int, slots: int, head_dim: int) -> Path:
    """Masked attention of 4 query heads over 2 KV heads."""
    tensor = make_tensor_value_info
    inputs = [
        tensor("q", dtype, [1, 4, rows, head_dim]),
        tensor("k", dtype, [1, 2, slots, head_dim]),
        tensor("v", dtype, [1, 2, slots, head_dim]),
        tensor("mask", TensorProto.BOOL, [1, 1, rows, slots]),
    ]
    node = make_node("Attention", ["q", "k", "v", "mask"], ["y"], scale=1.0)
    graph = make_graph([node], "one", inputs, [tensor("y", dtype, [1, 4, rows, head_dim])])
    save(make_model(graph, opset_imports=[make_opsetid("", 24)], ir_version=11), path)
    return path


def row_limits() -> list[tuple[int, int, int]]:
    """(dtype, slots, D) at the largest number of slots of one row, and 64 slots beyond it."""
    sizes = [(BF16, 64), (BF16, 128), (FP16, 128), (BF16, 256), (FP32, 128)]
    largest = [(*size, MEASURED_SHAPES.row_bytes // BYTES[size[0]] - size[1]) for size in sizes]
    return [(dtype, slots + more, d) for dtype, d, slots in largest for more in (0, 64)]


@pytest.mark.parametrize(("dtype", "slots", "head_dim"), row_limits())
def test_one_query_row_is_fused_up_to_the_recorded_number_of_slots(
    dtype: int, slots: int, head_dim: int, tmp_path: Path
) -> None:
    answer = ask(attention(tmp_path / "a.onnx", dtype, 1, slots, head_dim), ("8.9",))
    assert answer.parsed
    assert answer.built is MEASURED_SHAPES.fits(BYTES[dtype], 1, slots, head_dim)


@pytest.mark.parametrize(
    ("dtype", "rows", "head_dim"),
    [
        *((dtype, rows, 64) for dtype in (FP32, BF16) for rows in (2, 64)),
        *((FP16, rows, head_dim) for rows in (1, 64) for head_dim in (8, 20, 40, 256, 512)),
    ],
)
def test_types_and_head_sizes_are_fused_as_recorded(
    dtype: int, rows: int, head_dim: int, tmp_path: Path
) -> None:
    answer = ask(attention(tmp_path / "a.onnx", dtype, rows, 128, head_dim), ("8.9",))
    assert answer.parsed
    assert answer.built is MEASURED_SHAPES.fits(BYTES[dtype], rows, 128, head_dim)
