"""compressed-tensors' and ModelOpt's weights are those that were stored; others are refused."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.cli.app import main
from snapexport.errors import UserError
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.exporter.weights.readers import contradictions, read_quantization
from snapexport.exporter.weights.readers.fp8 import Fp8Tensor
from tests.builds import build
from tests.exporter.quantized_integers import (
    Arrays,
    Fp4,
    Weight,
    opened,
    quantize,
    rows_of_words,
    values,
)
from tests.exporter.weights.test_weights import weights_of
from tests.oracle import checkpoints

E4M3 = ml_dtypes.float8_e4m3fn


def config(*weights: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A quantization_config with a group for each of the weights' schemes."""
    groups = {
        f"group_{place}": {"targets": ["Linear"], "input_activations": None} | one
        for place, one in enumerate(
            one if "weights" in one else {"weights": one} for one in weights
        )
    }
    found = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return found | {"quantization_status": "compressed", "config_groups": groups} | others


def ints(group: int | None = 32, bits: int = 4, *, symmetric: bool = False) -> dict[str, Any]:
    strategy = {-1: "channel", None: "tensor"}.get(group, "group")  # type: ignore[call-overload]
    sizes = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    return sizes | {"strategy": strategy, "group_size": group if strategy == "group" else None}


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("group", [32, -1])
def test_packed_integers_are_those_that_were_stored(
    bits: int, sym: bool, group: int, tmp_path: Path
) -> None:
    weight = Weight(64, 96, 96 if group == -1 else group, bits, sym=sym)
    parts, scheme = rows_of_words(weight, "x", sym=sym), ints(group, bits, symmetric=sym)
    tensor = opened(parts, config(scheme), tmp_path)
    assert isinstance(tensor, IntegerWeight)
    container = 4 if bits <= 4 else 8
    zero = 1 << (container - 1) if sym else None
    assert (tensor.form.bits, tensor.form.zero) == (container, zero)
    for most in (1, 1 << 20):
        assert np.array_equal(values(tensor, most), weight.dequantized)


@pytest.mark.parametrize("form", ["packed", "bytes"])
def test_zero_points_of_a_symmetric_scheme_are_not_read(form: str, tmp_path: Path) -> None:
    """compressed-tensors itself leaves them out."""
    weight, stray = Weight(64, 96, 32, 4, sym=True), Weight(64, 96, 32, 4)
    for zeros in (np.full_like(stray.zeros, 9), stray.zeros):
        stray.zeros = zeros
        parts = rows_of_words(stray, "x")
        if form == "bytes":
            parts["x.weight_zero_point"] = (zeros.astype(np.int16) - 8).astype(np.int8)
        tensor = opened(parts, config(ints(symmetric=True)), tmp_path)
        if (zeros == 9).all():
            (said,) = contradictions({"": tensor})
            assert "contradict the symmetry" in said
            assert np.array_equal(values(tensor), weight.dequantized)
        else:
            with pytest.raises(UserError, match="has zero points from 0 to 15"):
                contradictions({"": tensor})


def test_what_says_nothing_of_the_weights_changes_nothing(tmp_path: Path) -> None:
    weight, dense = Weight(64, 96, 32, 4), {"format": "dense", "global_sparsity": 19.1}
    others = {"quantization_status": "frozen", "sparsity_config": dense}
    tensor = opened(rows_of_words(weight, "x"), config(ints(), **others), tmp_path)
    assert np.array_equal(values(tensor), weight.dequantized)


def test_columns_in_the_order_of_activations_become_an_order(tmp_path: Path) -> None:
    weight = Weight(64, 128, 32, 4).shuffled()
    parts = rows_of_words(weight, "x")
    parts["x.weight_g_idx"] = weight.of_columns.astype(np.int32)
    tensor = opened(parts, config(ints() | {"actorder": "group"}), tmp_path)
    assert isinstance(tensor, IntegerWeight) and tensor.form.ordered
    assert np.array_equal(values(tensor), weight.dequantized)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
def test_signed_bytes_are_read_with_scales_of_any_shape(strategy: str, tmp_path: Path) -> None:
    rng, shape = np.random.default_rng(0), {"tensor": (1,), "channel": (64, 1)}.get(strategy)
    shape = shape or ((64, 4) if strategy == "group" else (2, 4))
    q = rng.integers(-128, 128, (64, 128)).astype(np.int8)
    zeros = rng.integers(-128, 128, shape).astype(np.int8)
    scales = rng.random(shape).astype(np.float32)
    parts = {"x.weight": q, "x.weight_scale": scales, "x.weight_zero_point": zeros}
    scheme: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": False}
    scheme |= {"strategy": strategy}
    if strategy == "group":
        scheme["group_size"] = 32
    if strategy == "block":
        scheme["block_structure"] = "32x32"

    def whole(one: NDArray[Any]) -> NDArray[Any]:
        rows, columns = (1, 1) if one.ndim == 1 else one.shape
        return one.reshape(rows, columns).repeat(64 // rows, 0).repeat(128 // columns, 1)

    tensor = opened(parts, config(scheme, format="int-quantized"), tmp_path)
    expected = (q.astype(np.float32) - whole(zeros)) * whole(scales)
    assert isinstance(tensor, IntegerWeight)
    assert np.array_equal(values(tensor, 1), expected)


@pytest.mark.parametrize(
    ("strategy", "shape"),
    [("tensor", (1,)), ("channel", (60, 1)), ("group", (60, 4)), ("block", (2, 2))],
)
def test_fp8_is_read_with_scales_of_any_shape(
    strategy: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(60, 128)).astype(E4M3)
    scales = rng.random(shape).astype(np.float32)
    scheme: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": strategy}
    if strategy == "group":
        scheme["group_size"] = 32
    if strategy == "block":
        scheme["block_structure"] = [32, 64]
    tensor = opened(
        {"x.weight": q, "x.weight_scale": scales},
        config(scheme, format="float-quantized"),
        tmp_path,
    )
    assert isinstance(tensor, Fp8Tensor)
    rows, columns = (1, 1) if len(shape) == 1 else shape
    grid = scales.reshape(rows, columns).repeat(-(-60 // rows) if rows != 2 else 32, 0)[:60]
    expected = q.astype(np.float32) * grid.repeat(128 // columns, 1)
    assert np.array_equal(values(tensor), expected)


@pytest.mark.parametrize("by", ["compressed-tensors", "modelopt"])
def test_nvfp4_is_integers_of_half_the_scales(by: str, tmp_path: Path) -> None:
    weight, whole = Fp4(64, 96, 16), np.array([0.03], np.float32)
    scales = weight.e4m3.astype(np.float32)
    if by == "modelopt":
        parts: Arrays = {"x.weight": weight.bytes, "x.weight_scale": weight.e4m3}
        parts |= {"x.weight_scale_2": whole.reshape(()), "x.input_scale": whole}
        tensor = opened(parts, {"quant_method": by, "quant_algo": "NVFP4"}, tmp_path)
        expected = weight.dequantized(scales * whole)
    else:
        parts = {"x.weight_packed": weight.bytes, "x.weight_scale": weight.e4m3}
        parts |= {"x.weight_global_scale": whole}
        scheme = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
        tensor = opened(parts, config(scheme, format="nvfp4-pack-quantized"), tmp_path)
        expected = weight.dequantized(scales / whole)
    assert isinstance(tensor, IntegerWeight)
    assert (tensor.form.bits, tensor.form.block, tensor.form.zero) == (8, 16, 128)
    assert np.array_equal(values(tensor, 1), expected)


def test_mxfp4_is_integers_with_powers_of_two(tmp_path: Path) -> None:
    weight = Fp4(64, 96, 32)
    parts = {"x.weight_packed": weight.bytes, "x.weight_scale": weight.powers}
    scheme = {"num_bits": 4, "type": "float", "group_size": 32}
    tensor = opened(parts, config(scheme, format="mxfp4-pack-quantized"), tmp_path)
    powers = np.ldexp(np.float32(1), weight.powers.astype(int) - 127).astype(np.float32)
    assert isinstance(tensor, IntegerWeight)
    assert np.array_equal(values(tensor), weight.dequantized(powers))


@pytest.mark.parametrize("kind", ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8"])
def test_fp8_of_modelopt_is_read_by_the_shape_of_its_scales(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(60, 128)).astype(E4M3)
    scales: NDArray[Any] = np.array(0.5, np.float32)
    factors: NDArray[Any] = scales
    if kind == "MXFP8":
        scales = rng.integers(120, 130, (60, 4)).astype(np.uint8)
        factors = np.ldexp(np.float32(1), scales.astype(int) - 127).repeat(32, 1)
    elif kind != "FP8":
        scales = rng.random(60).astype(np.float32)
        factors = scales[:, None]
    found = {"quantization": {"quant_algo": kind, "kv_cache_quant_algo": "FP8"}}
    parts = {"x.weight": q, "x.weight_scale": scales}
    tensor = opened(parts, {"quant_method": "modelopt", **found}, tmp_path)
    assert np.array_equal(values(tensor), (q.astype(np.float32) * factors).astype(np.float32))


def test_fp8_of_a_build_is_dequantized_without_a_config_too() -> None:
    """ModelOpt's config is beside the model's, and is not part of a build."""
    for columns, count, width in ((576, 5, 128), (96, 1, 128), (256, 8, 32)):
        q, scales = torch.ones(2, columns), torch.rand(2, count)
        found = dequantize({"x": q, "x.row_scales": scales}, {})["x"]
        assert torch.equal(found, scales.repeat_interleave(width, 1)[:, :columns])


def test_each_module_has_the_scheme_that_names_it(tmp_path: Path) -> None:
    of_x = {"targets": ["re:.*x$"], "weights": ints(64, 8)}
    weight = Weight(32, 128, 64, 8)
    parts = rows_of_words(weight, "x")
    for groups in ((of_x, ints()), (ints(), of_x), (ints(), {**of_x, "targets": ["x"]})):
        tensor = opened(parts, config(*groups, format="mixed-precision"), tmp_path)
        assert np.array_equal(values(tensor), weight.dequantized)


def test_scales_of_caches_are_not_part_of_a_weight(tmp_path: Path) -> None:
    parts = rows_of_words(Weight(32, 128, 32, 4), "x")
    parts |= {"y.output_scale": np.ones(1, np.float32), "y.weight": np.ones((2, 2), np.float32)}
    whole = read_quantization({"quantization_config": config(ints(), kv_cache_scheme={"a": 1})})
    assert whole is not None and any("caches" in text for text in whole.left_out)
    assert opened(parts, config(ints()), tmp_path).shape == (32, 128)


def put(name: str, place: Any, value: Any) -> Any:
    return lambda parts: parts[name].__setitem__(place, value)


DAMAGED: list[tuple[Any, str]] = [
    (lambda parts: parts.pop("x.weight_scale"), r"without x\.weight_scale"),
    (lambda parts: parts.pop("x.weight_packed"), r"without x\.weight"),
    (lambda parts: parts.pop("x.weight_zero_point"), "without x.weight_zero_point"),
    (lambda parts: parts.update({"x.weight_scale": parts["x.weight_scale"][:-1]}), "has shape"),
    (put("x.weight_shape", 1, 1 << 40), "columns"),
    (put("x.weight_shape", 1, -1), "columns"),
    (put("x.weight_shape", 1, 64), "has shape"),
    (put("x.weight_scale", (1, 2), np.nan), "NaN or infinite"),
]


@pytest.mark.parametrize(("spoil", "message"), DAMAGED)
def test_damaged_parts_are_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    parts = rows_of_words(Weight(64, 128, 32, 4), "x")
    spoil(parts)
    with pytest.raises(UserError, match=message) as error:
        values(opened(parts, config(ints()), tmp_path))
    assert error.value.hint


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config(ints(), format="marlin-24"), "format 'marlin-24'"),
        (config(ints(), quantization_status="calibration"), "quantization_status 'calibration'"),
        (config(ints(), sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (config(ints(), transform_config={"config_groups": {"a": 1}}), "transform_config"),
        (config(ints(), surprise=1), "unknown key 'surprise'"),
        (config(ints() | {"surprise": 1}), "unknown key 'surprise'"),
        (config(ints() | {"num_bits": 9}), "num_bits 9"),
        (config(ints() | {"num_bits": 4.0}), r"num_bits 4\.0"),
        (config(ints() | {"strategy": "token"}), "strategy 'token'"),
        (config(ints() | {"group_size": 0}), "group_size is 0"),
        (config(ints() | {"dynamic": True}), "dynamic True"),
        (config(ints() | {"strategy": "block"}), "block_structure"),
        (config(ints() | {"type": "float", "num_bits": 6}), "num_bits 6"),
        (config(ints() | {"type": "float"}), "symmetric False"),
        (config({"targets": ["re:(a+)+$"], "weights": ints()}), "not a regular expression"),
        (config({"targets": ["re:("], "weights": ints()}), "not a regular expression"),
        (config({"targets": [1], "weights": ints()}), "not a list of names"),
        (config(ints(), config_groups=[1]), "config_groups is not a table"),
        (config(ints(), config_groups={"W4A16": ["Linear"]}), "the group W4A16 is not a table"),
        (NVFP4 | {"quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ'"),
        (NVFP4 | {"quant_algo": "MIXED_PRECISION"}, "quant_algo None"),
        (NVFP4 | {"pre_quant_scale": True}, "pre_quant_scale True"),
        (NVFP4 | {"surprise": True}, "unknown key 'surprise'"),
        (NVFP4 | {"quantization": 1}, "quantization is not a table"),
    ],
)
def test_configs_that_change_what_weights_mean_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_quantization({"quantization_config": given})
    assert error.value.hint


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan, -1.0])
def test_a_global_scale_that_is_not_positive_is_refused(value: float, tmp_path: Path) -> None:
    weight = Fp4(32, 32, 16)
    parts: Arrays = {"x.weight": weight.bytes, "x.weight_scale": weight.e4m3}
    parts["x.weight_scale_2"] = np.array(value, np.float32)
    with pytest.raises(UserError, match="global scale of the tensor"):
        values(opened(parts, NVFP4, tmp_path))


def test_scales_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    weight = Fp4(32, 32, 16)
    parts: Arrays = {"x.weight": weight.bytes, "x.weight_scale": np.full_like(weight.e4m3, 448)}
    parts["x.weight_scale_2"] = np.array(3e38, np.float32)
    with pytest.raises(UserError, match="NaN or infinite"), np.errstate(over="raise"):
        values(opened(parts, NVFP4, tmp_path))


def test_parts_that_change_a_layer_are_refused(tmp_path: Path) -> None:
    weight = Fp4(32, 32, 16)
    parts: Arrays = {"x.weight": weight.bytes, "x.weight_scale": weight.e4m3}
    parts |= {"x.weight_scale_2": np.ones((), np.float32), "x.pre_quant_scale": np.ones(32)}
    with pytest.raises(UserError, match="pre_quant_scale, which is not read"):
        opened(parts, NVFP4, tmp_path)


@pytest.mark.slow
def test_a_build_of_modelopts_config_beside_the_models_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts(stem: str, rows: int, columns: int) -> Any:
        weight = Fp4(rows, columns, 16, seed=rows + columns)
        whole = np.array(1e-4, np.float32)
        made: Arrays = {f"{stem}.weight": weight.bytes, f"{stem}.weight_scale": weight.e4m3}
        made |= {f"{stem}.weight_scale_2": whole, f"{stem}.input_scale": whole}
        return made, weight.dequantized(weight.e4m3.astype(np.float32) * whole)

    model = checkpoints.make("llama", tmp_path / "m")
    expected = quantize(model, {}, parts)
    edited = json.loads((model / "config.json").read_text())
    del edited["quantization_config"]
    (model / "config.json").write_text(json.dumps(edited))
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (model / "hf_quant_config.json").write_text(json.dumps(beside))
    assert open_checkpoint(model).left_out
    out = tmp_path / "b"
    assert main(["build", "--model", str(model), "--L-max", "32", "--out", str(out)]) == 0
    assert "note: activations stay in the build's dtype" in capsys.readouterr().err
    made = weights_of(build(model, tmp_path / "c", L_max=32, dtype="fp32", weights="dequantize"))
    for name, dequantized in expected.items():
        assert np.array_equal(made[name].numpy(), dequantized)
