"""NVFP4 for TensorRT: the bytes of a checkpoint stay, and graphs dequantize them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.helper import make_empty_tensor_value_info, make_graph, make_model
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import read_model
from snapexport.builder.plan.weights import stored_bytes
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.runtime.requests.llm import LLM
from tests.builds import build
from tests.exporter.quantized_integers import Fp4, quantize
from tests.exporter.weights.forms.test_signed_integers import TENSORRT, in_files
from tests.exporter.weights.readers.test_compressed_tensors import NVFP4, config
from tests.exporter.weights.test_weights import weights_of
from tests.oracle import checkpoints

CT = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
CONFIGS = {"modelopt": NVFP4, "compressed-tensors": config(CT, format="nvfp4-pack-quantized")}
KEEP: dict[str, Any] = TENSORRT | {"weights": "keep"}


def nvfp4(model: Path, by: str, name: str = "llama", **changes: Any) -> dict[str, Any]:
    """Make a checkpoint in NVFP4. Returns what its matrices dequantize to."""

    def parts(stem: str, rows: int, columns: int) -> Any:
        weight, whole = Fp4(rows, columns, 16, seed=rows + columns), np.array(0.03, np.float32)
        scales = weight.e4m3.astype(np.float32)
        if by == "modelopt":
            made = {f"{stem}.weight": weight.bytes, f"{stem}.weight_scale": weight.e4m3}
            return made | {f"{stem}.weight_scale_2": whole}, weight.dequantized(scales * whole)
        made = {f"{stem}.weight_packed": weight.bytes, f"{stem}.weight_scale": weight.e4m3}
        made[f"{stem}.weight_global_scale"] = (1 / whole).reshape(1)
        return made, weight.dequantized(scales * whole)

    return quantize(checkpoints.make(name, model, **changes), CONFIGS[by], parts)


def by_onnx(made: Build, graph: str) -> dict[str, NDArray[np.float32]]:
    """The weights of NVFP4 as a graph's own nodes give them, by onnx's reference.

    The activations on which they depend in form are random.
    """
    model = onnx.load(made.graph(graph))
    makers = {name: node for node in model.graph.node for name in node.output}
    of_floats = {one.name for one in model.graph.initializer if one.data_type == 23}
    ends = {node.output[0]: node.input[0] for node in makers.values() if node.input[0] in of_floats}
    assert TensorProto.FLOAT4E2M1 == 23 and len(ends) == len(of_floats)
    nodes, feeds, waiting = [], {}, list(ends)
    while waiting:
        if (node := makers.get(name := waiting.pop())) is None or node in nodes:
            continue
        if node.op_type == "ReduceMin":
            feeds[name] = np.float32(np.random.default_rng(len(feeds)).normal())
            continue
        nodes.insert(0, node)
        waiting += node.input
    nodes.sort(key=list(model.graph.node).index)
    inputs, outputs = (list(map(make_empty_tensor_value_info, some)) for some in (feeds, ends))
    part = make_graph(nodes, "weights", inputs, outputs, list(model.graph.initializer))
    values = ReferenceEvaluator(make_model(part, opset_imports=model.opset_import)).run(None, feeds)
    return {n.removesuffix(".fp4"): v for n, v in zip(ends.values(), values, strict=True)}


@pytest.mark.parametrize("by", CONFIGS)
def test_graphs_and_readers_dequantize_nvfp4_as_it_is_stored(by: str, tmp_path: Path) -> None:
    expected = nvfp4(tmp_path / "m", by)
    made = build(tmp_path / "m", tmp_path / "b", **KEEP)
    assert made.manifest.matrices["fp4-16"] == len(expected) == 14
    for graph in ("prefill", "decode"):
        got = by_onnx(made, graph)
        assert got.keys() == expected.keys()
        for name, values in got.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-6)
    written = weights_of(made)
    assert written["model.layers.0.mlp.up_proj.weight.fp4"].nbytes * 2 == values.size
    for name, one in dequantize(written).items():
        if name in expected:
            np.testing.assert_allclose(one.numpy(), expected[name], rtol=1e-6)
    options = BuildOptions.of(model=str(tmp_path / "m"), out=tmp_path, **KEEP)
    planned = stored_bytes(read_model(str(tmp_path / "m")), options)
    assert planned == pytest.approx(in_files(made), rel=0.01)


def test_onnx_runtime_refuses_a_build_in_nvfp4_with_a_way_out(tmp_path: Path) -> None:
    nvfp4(tmp_path / "m", "modelopt")
    made = build(tmp_path / "m", tmp_path / "b", **KEEP)
    with pytest.raises(UserError, match="a build with NVFP4 weights is not supported in") as error:
        LLM(made.directory)
    assert "--weights dequantize" in error.value.hint
    default = build(tmp_path / "m", tmp_path / "d", **TENSORRT)
    assert default.manifest.quantization is None


def test_scales_that_are_nan_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "m"
    nvfp4(model, "modelopt")
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.self_attn.q_proj.weight_scale"
    tensors[name].view(torch.uint8)[3, 1] = 0x7F
    save_file(tensors, file)
    with pytest.raises(UserError, match="NaN or infinite"):
        build(model, tmp_path / "b", **KEEP)
    assert not (tmp_path / "b").exists()
