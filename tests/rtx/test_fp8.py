"""The real parser and builder take fp8 weights with block scales, and dequantize them as a whole.

A graph could so keep a checkpoint's fp8 bytes, which saves memory. It would hardly save time: the
builder reserves scratch memory for the whole matrix in 16 bits, to be written and read in each run.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor
from onnx.helper import make_tensor_value_info as info

from snapexport.graphs.surgery import IR_VERSION
from tests.rtx.library import Answer, ask

N, K, BLOCK = 1024, 2048, 128
FLOATS = {TensorProto.BFLOAT16: ml_dtypes.bfloat16, TensorProto.FLOAT16: np.float16}
WORKSPACE = 8 << 20
"""Bytes that the library's products of matrices take anyway."""


def product(path: Path, kind: int, *, scales: tuple[int, ...], as_inputs: bool) -> None:
    """y [32,N] = x [32,K] @ W^T; W is fp8 [N,K], with scales [N,K/128] or [N]."""
    values: dict[str, tuple[int, NDArray[np.generic]]] = {
        "w": (TensorProto.FLOAT8E4M3FN, np.ones((N, K), ml_dtypes.float8_e4m3fn)),
        "s": (kind, np.ones(scales, FLOATS[kind])),
    }
    inputs, weights = [info("x", kind, [32, K])], []
    for name, (stored, array) in values.items():
        if as_inputs:
            inputs.append(info(name, stored, array.shape))
        else:
            weights.append(make_tensor(name, stored, array.shape, array.tobytes(), raw=True))
    layout = {"axis": 1, "block_size": BLOCK} if len(scales) == 2 else {"axis": 0}
    nodes = [
        make_node("DequantizeLinear", ["w", "s"], ["d"], **layout),
        make_node("Gemm", ["x", "d"], ["y"], transB=1),
    ]
    graph = make_graph(nodes, "fp8", inputs, [info("y", kind, [32, N])], weights)
    model = make_model(graph, opset_imports=[make_opsetid("", 24)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def answer(path: Path, kind: int, *, scales: tuple[int, ...], as_inputs: bool) -> Answer:
    product(path, kind, scales=scales, as_inputs=as_inputs)
    found = ask(path, ("8.9", "12.0"))
    assert found.accepted, found.errors
    assert found.layers["DEQUANTIZE"] == 1 and found.scratch is not None and found.nbytes
    return found


@pytest.mark.parametrize("as_inputs", [False, True])
@pytest.mark.parametrize("kind", FLOATS)
def test_fp8_with_block_scales_is_accepted_and_dequantized_into_scratch_memory(
    kind: int, as_inputs: bool, tmp_path: Path
) -> None:
    path = tmp_path / "fp8.onnx"
    found = answer(path, kind, scales=(N, K // BLOCK), as_inputs=as_inputs)
    assert found.scratch is not None and found.scratch >= 2 * N * K
    if not as_inputs:
        assert found.nbytes is not None and found.nbytes < 1.5 * N * K, "the engine keeps fp8"


def test_fp8_with_a_scale_for_each_row_is_not_dequantized_as_a_whole(tmp_path: Path) -> None:
    found = answer(tmp_path / "fp8.onnx", TensorProto.BFLOAT16, scales=(N,), as_inputs=False)
    assert found.scratch is not None and found.scratch <= WORKSPACE
