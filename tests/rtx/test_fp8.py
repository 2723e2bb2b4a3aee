"""The real parser and builder take fp8 weights with block scales, and dequantize them as a whole.

That saves memory, and no time: the builder reserves scratch memory for the whole matrix in 16 bits,
to be written and read in each run.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor
from onnx.helper import make_tensor_value_info as info

from snapexport.contract.build_directory import Build
from snapexport.graphs.surgery import IR_VERSION
from tests.builds import build
from tests.exporter.quantized_files import quantize_to_fp8
from tests.exporter.quantized_integers import quantize
from tests.exporter.weights.readers.test_compressed_tensors import config
from tests.oracle import checkpoints
from tests.rtx.conftest import SMALL
from tests.rtx.library import Answer, ask, ask_kernels

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


FP8_GPUS = ("8.9", "12.0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Four layers of latent attention, two of them with experts."""
    directory = tmp_path_factory.mktemp("fp8-build")
    model = checkpoints.make("deepseek-v3", directory / "model", num_hidden_layers=4)
    options = SMALL | {"dtype": "bf16", "batch": 4, "weights": "fp8"}
    return build(quantize_to_fp8(model), directory / "b", target="tensorrt-rtx", **options)


def test_the_real_builder_accepts_every_graph_with_fp8_weights(made: Build) -> None:
    for name, entry in made.manifest.graphs.items():
        found = ask(made.graph(name), FP8_GPUS)
        assert found.accepted, f"{name}: {found.errors}"
        graph = onnx.load(made.graph(name), load_external_data=False).graph
        kept = sum(one.data_type == TensorProto.FLOAT8E4M3FN for one in graph.initializer)
        assert found.layers.get("DEQUANTIZE", 0) == kept and (kept > 0) == (name != "compress")
        assert len(found.inputs) == len(entry.inputs), name


def test_scratch_memory_of_fp8_weights_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    """A dequantized layer of these shapes has 26 MB."""
    scratch: dict[str, list[int]] = {"prefill": [], "decode": []}
    wide: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096}
    for layers in (2, 4):
        model = checkpoints.make("qwen3", tmp_path / f"m{layers}", num_hidden_layers=layers, **wide)
        options = SMALL | {"dtype": "bf16", "weights": "fp8", "target": "tensorrt-rtx"}
        one = build(quantize_to_fp8(model), tmp_path / f"b{layers}", **options)
        for name, found in scratch.items():
            answer = ask(one.graph(name), ("8.9",))
            assert answer.accepted and answer.nbytes is not None and answer.scratch is not None
            assert answer.nbytes < 20e6 * layers, "bf16 would take 26 MB a layer"
            found.append(answer.scratch)
    assert all(more < few + 8e6 for few, more in scratch.values()), scratch


@pytest.mark.parametrize("scales", ["tensor", "channel"])
def test_no_kernel_writes_a_matrix_that_has_a_scale_for_each_row(
    scales: str, tmp_path: Path
) -> None:
    """The builder multiplies with the bytes."""

    def parts(stem: str, rows: int, columns: int) -> Any:
        shape = (1,) if scales == "tensor" else (rows, 1)
        q = np.ones((rows, columns), ml_dtypes.float8_e4m3fn)
        return {f"{stem}.weight": q, f"{stem}.weight_scale": np.zeros(shape, np.float32)}, q

    wide: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096}
    model = checkpoints.make("llama", tmp_path / "m", **wide)
    scheme = {"num_bits": 8, "type": "float", "strategy": scales}
    quantize(model, config(scheme, format="float-quantized"), parts)
    options = SMALL | {"dtype": "bf16", "weights": "fp8", "target": "tensorrt-rtx"}
    made = build(model, tmp_path / "b", **options)
    found = ask_kernels(made.graph("decode"))
    assert found.accepted and ask(made.graph("decode"), ("12.0",)).accepted, found.errors
    shapes = [shape for *_, outputs in found.kernels for _, shape in outputs]
    sizes = [np.prod([int(side) for side in shape.split(",") if side]) for shape in shapes]
    assert max(sizes) < 1024 * 1024


def test_the_real_builder_refuses_fp8_weights_for_gpus_without_fp8(made: Build) -> None:
    found = ask(made.graph("decode"), ("8.6",))
    assert not found.accepted and "fp8_e4m3" in found.errors[0]
    command = [sys.executable, "-m", "snapexport", "engine", str(made.directory)]
    command += ["--graphs", "decode", "--compute-capability"]
    refused = subprocess.run([*command, "8.6"], capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2 and "fp8 weights" in refused.stderr and "8.9" in refused.stderr
    done = subprocess.run([*command, *FP8_GPUS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


EXPERTS = 16


def stack(path: Path, form: str) -> Path:
    """y = x @ W[i]^T, W fp8 [16,N,K], of one expert i, or of six in a Scan."""
    values = np.ones((EXPERTS, N, K), ml_dtypes.float8_e4m3fn)
    scales = np.ones((EXPERTS, N, K // BLOCK), np.float32)
    weights = [
        make_tensor("w", TensorProto.FLOAT8E4M3FN, values.shape, values.tobytes(), raw=True),
        make_tensor("s", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True),
        make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
    ]
    dequantize = [
        make_node("DequantizeLinear", ["w", "s"], ["wide"], axis=2, block_size=BLOCK),
        make_node("Cast", ["wide"], ["d"], to=TensorProto.BFLOAT16),
    ]
    product = [
        make_node("Gather", ["d", "i"], ["one"]),
        make_node("Gemm", ["x", "one"], ["y"], transB=1),
    ]
    bf16, fp32 = TensorProto.BFLOAT16, TensorProto.FLOAT
    inputs = [info("x", bf16, [32, K]), info("i", TensorProto.INT64, [])]
    outputs, nodes = [info("y", bf16, [32, N])], [*dequantize, *product]
    if form == "gather before":
        first = [make_node("Gather", [name, "i"], [f"{name}1"]) for name in ("w", "s")]
        one = make_node("DequantizeLinear", ["w1", "s1"], ["wide"], axis=1, block_size=BLOCK)
        cast = make_node("Cast", ["wide"], ["one"], to=bf16)
        nodes = [*first, one, cast, product[1]]
    if form == "scan":
        body = make_graph(
            [
                make_node("Identity", ["state"], ["same"]),
                make_node("Cast", ["i32"], ["i"], to=TensorProto.INT64),
                *product,
            ],
            "turn",
            [info("state", fp32, []), info("i32", fp32, []), info("x", bf16, [32, K])],
            [info("same", fp32, []), info("y", bf16, [32, N])],
        )
        inputs = [info("turns", fp32, [6]), info("xs", bf16, [6, 32, K])]
        scan = make_node(
            "Scan", ["zero", "turns", "xs"], ["state", "ys"], num_scan_inputs=2, body=body
        )
        outputs, nodes = [info("ys", bf16, [6, 32, N])], [*dequantize, scan]
    graph = make_graph(nodes, "stack", inputs, outputs, weights)
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 24)], ir_version=IR_VERSION), path)
    return path


def test_one_gathered_expert_is_dequantized_by_itself_and_a_scan_dequantizes_them_all(
    tmp_path: Path,
) -> None:
    """So blocks of experts cost a layer's experts in scratch memory, in each run."""
    scratch = {}
    for form in ("gather", "scan"):
        found = ask(stack(tmp_path / f"{form}.onnx", form), ("8.9",))
        assert found.accepted and found.scratch is not None, (form, found.errors)
        scratch[form] = found.scratch
    assert scratch["gather"] < 2 * (2 * N * K) + WORKSPACE
    assert scratch["scan"] >= EXPERTS * 2 * N * K


def test_fp8_values_cannot_be_gathered_before_they_are_dequantized(tmp_path: Path) -> None:
    found = ask(stack(tmp_path / "before.onnx", "gather before"), ("8.9",))
    assert found.parsed and not found.accepted
    assert any("has datatype FP8 but is not consumed by" in one for one in found.errors)
