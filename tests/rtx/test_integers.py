"""The real parser and builder take integers with block scales, and multiply with 4 bits as stored.

Weights of 8 bits and experts are dequantized as a whole, in scratch memory, when they are due.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor
from onnx.helper import make_tensor_value_info as info

from snapexport.graphs.surgery import IR_VERSION
from tests.builds import build
from tests.exporter import gguf_files
from tests.exporter.weights.forms.test_fp4_kept import nvfp4
from tests.exporter.weights.forms.test_signed_integers import quantized_by
from tests.rtx.conftest import SMALL
from tests.rtx.library import Answer, ask

N, K, BLOCK = 1024, 1024, 32
TYPES = {4: TensorProto.INT4, 8: TensorProto.INT8}
FP16 = TensorProto.FLOAT16


def product(path: Path, bits: int, *, behind: str = "Identity", scale: float = 0.01) -> Answer:
    """y [32,N] = x [32,K] @ W^T, of blocks one of which has a scale of its own."""
    scales = np.full((N, K // BLOCK), 0.01, np.float16)
    scales[1, 1] = scale
    weights = [
        make_tensor("w", TYPES[bits], (N, K), bytes(N * K * bits // 8), raw=True),
        make_tensor("s", FP16, scales.shape, scales.tobytes(), raw=True),
    ]
    nodes = [make_node(behind, ["s"], ["read"])] if behind else []
    nodes += [
        make_node("DequantizeLinear", ["w", "read" if behind else "s"], ["d"], block_size=BLOCK),
        make_node("Gemm", ["x", "d"], ["y"], transB=1),
    ]
    inputs, outputs = [info("x", FP16, [32, K])], [info("y", FP16, [32, N])]
    graph = make_graph(nodes, "integers", inputs, outputs, weights)
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 24)], ir_version=IR_VERSION), path)
    return ask(path, ("8.9",))


def test_four_bits_are_multiplied_as_stored_and_eight_dequantized(tmp_path: Path) -> None:
    few, many = (product(tmp_path / f"{bits}.onnx", bits) for bits in (4, 8))
    assert few.scratch is not None and many.scratch is not None
    assert many.scratch >= few.scratch + N * K * 2


@pytest.mark.parametrize("scale", [-0.01, 0.0])
def test_scales_that_are_not_positive_are_accepted_after_an_identity(
    scale: float, tmp_path: Path
) -> None:
    refused = product(tmp_path / "q.onnx", 8, behind="", scale=scale)
    assert not refused.parsed and "must all be positive" in refused.errors[-1]
    for bits in (4, 8):
        assert product(tmp_path / "q.onnx", bits, scale=scale).accepted


WIDE: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096}


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4.6), ("Q4_1", 5.1), ("Q8_0", 8.6)])
def test_engines_hold_a_checkpoints_integers_and_scratch_does_not_grow_with_layers(
    kind: str, bits: float, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    scratch: dict[str, list[int]] = {"prefill": [], "decode": []}
    for layers in (2, 4):
        of = gguf.GGMLQuantizationType[kind]
        folder = tmp_path / f"{layers}"
        folder.mkdir()
        file = gguf_files.make("llama", folder, of, num_hidden_layers=layers, **WIDE)
        options = SMALL | {"dtype": "bf16", "target": "tensorrt-rtx", "weights": "keep"}
        one = build(file, folder / "b", **options)
        assert one.manifest.quantization == "keep" and one.manifest.bits_per_weight < bits
        for name, found in scratch.items():
            answer = ask(one.graph(name), ("8.0", "8.6", "8.9", "12.0"))
            assert answer.accepted and answer.nbytes and answer.scratch is not None, answer.errors
            assert answer.nbytes < 15e6 * layers * bits / 8 + 4e6, "bf16 would take 29 MB a layer"
            found.append(answer.scratch)
    assert all(more < few + 4e6 for few, more in scratch.values()), scratch


@pytest.mark.parametrize(
    ("method", "name"),
    [("awq", "qwen3"), ("gptq", "qwen3-moe"), ("gptq-order", "qwen3"), ("ct-int8", "qwen3-moe")],
)
def test_builds_of_every_form_are_accepted(method: str, name: str, tmp_path: Path) -> None:
    """At this width attention beside experts has no fused kernel."""
    wide = {"hidden_size": 512, "moe_intermediate_size": 256, "num_experts": 16}
    quantized_by(method, name, tmp_path / "m", **wide if "moe" in name else {})
    options = SMALL | {"dtype": "bf16", "batch": 16, "target": "tensorrt-rtx", "weights": "keep"}
    made = build(tmp_path / "m", tmp_path / "b", **options)
    assert made.manifest.quantization == "keep"
    for graph in ("prefill", "decode"):
        answer = ask(made.graph(graph), ("8.6",))
        assert answer.accepted and answer.layers["DEQUANTIZE"] > 13, answer.errors


def test_nvfp4_is_compiled_for_gpus_that_have_it_and_dequantized_when_due(tmp_path: Path) -> None:
    scratch = []
    for layers in (2, 4):
        nvfp4(tmp_path / f"m{layers}", "modelopt", num_hidden_layers=layers, **WIDE)
        options = SMALL | {"dtype": "bf16", "target": "tensorrt-rtx", "weights": "keep"}
        made = build(tmp_path / f"m{layers}", tmp_path / f"b{layers}", **options)
        found = ask(made.graph("decode"), ("12.0",))
        assert found.accepted and found.nbytes and found.scratch is not None, found.errors
        assert found.nbytes < 15e6 * layers * 4.6 / 8 + 4e6
        scratch.append(found.scratch)
    assert scratch[1] < scratch[0] + 4e6
    assert "fp4_e2m1" in ask(made.graph("decode"), ("8.9",)).errors[0]
    command = [sys.executable, "-m", "snapexport", "engine", str(made.directory)]
    command += ["--graphs", "decode"]
    refused = subprocess.run(
        [*command, "--compute-capability", "8.9"], capture_output=True, text=True, timeout=300
    )
    assert refused.returncode == 2 and "NVFP4 weights" in refused.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "12.0, 12.1" in done.stdout, done.stderr
