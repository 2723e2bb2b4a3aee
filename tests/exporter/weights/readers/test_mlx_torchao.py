"""MLX's and torchao's weights are those that were stored; other formats are named by their tensors.

mlx and torchao dequantize the same files to the same numbers, bit by bit.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from snapexport.errors import UserError
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.weights.forms.integers import IntegerWeight
from tests.builds import build
from tests.exporter.quantized_integers import Arrays, opened, packed, values
from tests.exporter.weights.test_weights import weights_of

SINGLE = "model.safetensors"


def mlx(stem: str, rows: int, columns: int, group: int, bits: int) -> tuple[Arrays, NDArray[Any]]:
    """The parts of random integers, and the weight in float64."""
    rng = np.random.default_rng(bits + rows)
    q = rng.integers(0, 1 << bits, (rows, columns))
    scales, biases = rng.normal(0, 0.01, (2, rows, columns // group)).astype(np.float16)
    parts = {f"{stem}.weight": packed(q, bits).view(np.uint32)}
    parts |= {f"{stem}.scales": scales, f"{stem}.biases": biases}
    whole = (one.astype(np.float64).repeat(group, 1) for one in (scales, biases))
    return parts, q * next(whole) + next(whole)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_affine_weights_of_mlx_are_those_that_were_stored(
    bits: int, group: int, tmp_path: Path
) -> None:
    parts, expected = mlx("x", 72, 384, group, bits)
    sizes = {"bits": 8 - bits // 8 * 4, "group_size": 32, "x": {"bits": bits, "group_size": group}}
    for config in ({"bits": bits, "group_size": group, "mode": "affine", "y": False}, sizes):
        tensor = opened(parts, {"quant_method": "mlx"} | config, tmp_path)
        assert isinstance(tensor, IntegerWeight) and tensor.form.block == group
        for most in (1, 1 << 20):
            assert np.abs(values(tensor, most) - expected).max() < 1e-6


def torchao(rows: int, columns: int, group: int, lowest: int) -> tuple[Arrays, NDArray[Any]]:
    rng = np.random.default_rng(group)
    q = rng.integers(lowest, -lowest, (rows, columns)).astype(np.int8)
    scales = rng.random((rows, columns // group)).astype(np.float32)
    zeros = rng.integers(lowest, -lowest, scales.shape).astype(np.int8) * np.int8(lowest != -128)
    stored = {"qdata": q, "scale": scales, "zero_point": zeros}
    weight = (q - zeros.astype(np.float64).repeat(group, 1)) * scales.repeat(group, 1)
    return {f"x._weight_{name}": one for name, one in stored.items()}, weight


@pytest.mark.parametrize(("group", "lowest"), [(96, -128), (32, -128), (32, -8)])
def test_bytes_of_torchao_are_those_that_were_stored(
    group: int, lowest: int, tmp_path: Path
) -> None:
    parts, expected = torchao(64, 96, group, lowest)
    config = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnly"}}}
    tensor = opened(parts, config, tmp_path)
    assert isinstance(tensor, IntegerWeight)
    assert tensor.form.zero == (128 if lowest == -128 else None)
    assert np.abs(values(tensor) - expected).max() < 1e-5
    with pytest.raises(UserError, match="stored as U8"):
        packed_in_4 = parts | {"x._weight_qdata": parts["x._weight_qdata"].view(np.uint8)}
        opened(packed_in_4, config, tmp_path)


def quantize_by(make: Any, folder: Path) -> dict[str, NDArray[Any]]:
    """Give a checkpoint's linear layers other parts, in place. Returns their weights."""
    tensors, expected = load_file(folder / SINGLE), {}
    for name in [name for name in tensors if ".self_attn." in name]:
        rows, columns = tensors.pop(name).shape
        parts, expected[name] = make(name.removesuffix(".weight"), rows, columns)
        tensors |= parts
    save_file(tensors, folder / SINGLE)
    return expected


def test_build_of_a_checkpoint_of_mlx_has_its_weights(checkpoint: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(checkpoint, tmp_path / "m"))
    expected = quantize_by(lambda stem, *shape: mlx(stem, *shape, 32, 4), model)
    config = json.loads((model / "config.json").read_text())
    with pytest.raises(UserError, match="in the format MLX, as the tensor model"):
        open_checkpoint(model)
    config["quantization"] = {"group_size": 32, "bits": 4}
    (model / "config.json").write_text(json.dumps(config))
    stated = config.pop("quantization")
    (model / "config.json").write_text(json.dumps(config | {"quantization_config": stated}))
    made = weights_of(build(model, tmp_path / "b", L_max=32, dtype="fp32", weights="dequantize"))
    for name, weight in expected.items():
        assert np.abs(made[name].numpy() - weight).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("EXL2", [".q_weight", ".q_scale", ".q_groups", ".q_invperm"]),
        ("EXL3", [".trellis", ".suh", ".svh"]),
        ("EXL3", [".trellis", ".su", ".sv"]),
        ("quanto", [".weight._data", ".weight._scale", ".weight._shift"]),
        ("quanto", [".weight._data", ".weight._scale_shift"]),
        ("torchao with packed weights", ["._weight_qdata", "._weight_scale_and_zero"]),
        (
            "torchao of older versions",
            [".weight.tensor_impl.int_data", ".weight.tensor_impl.scale"],
        ),
        ("SpQR", [".dense_weights", ".row_offsets", ".col_vals"]),
        ("HIGGS", [".weight", ".scales", ".tables", ".tables2"]),
        ("MLX of floats of 4 bits", [".weight", ".scales"]),
        ("HQQ", [".W_q", ".scale", ".zero"]),
        ("AQLM", [".codes", ".codebooks", ".scales"]),
        ("GPTQ", [".qweight", ".qzeros", ".scales", ".g_idx"]),
        ("compressed-tensors", [".weight_packed", ".weight_scale"]),
        ("MLX", [".weight", ".scales", ".biases"]),
        ("fp8", [".weight", ".weight_scale_inv"]),
    ],
)
def test_format_without_a_config_is_named_by_its_tensors(
    name: str, ends: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(checkpoint, tmp_path / "m"))
    zeros = np.zeros(1, np.uint8)
    quantize_by(lambda stem, *_: ({stem + end: zeros for end in ends}, 0), model)
    with pytest.raises(UserError, match=f"quantized in the format {name}, as") as error:
        open_checkpoint(model)
    is_read = name in ("GPTQ", "compressed-tensors", "MLX", "fp8")
    assert "start from the original checkpoint" in error.value.hint
    assert ("download config.json again" in error.value.hint) == is_read


@pytest.mark.parametrize(
    ("method", "said"),
    [({}, []), ({"quant_method": None}, []), ({"quant_method": "gptq", "bits": 4}, ["says gptq"])],
)
def test_quantization_of_which_floats_show_nothing(
    method: dict[str, Any], said: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(checkpoint, tmp_path / "m"))
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": method}
    (model / "config.json").write_text(json.dumps(config))
    notes = open_checkpoint(model).left_out
    assert len(notes) == len(said) and all(map(str.__contains__, notes, said))


def test_bytes_of_torchao_are_read_without_a_config(checkpoint: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(checkpoint, tmp_path / "m"))
    parts, expected = torchao(64, 96, 32, -128)
    save_file(load_file(model / SINGLE) | parts, model / SINGLE)
    tensor = open_checkpoint(model).tensors["x.weight"]
    assert np.abs(values(tensor) - expected).max() < 1e-5
