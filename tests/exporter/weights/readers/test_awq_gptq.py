"""AWQ's and GPTQ's weights are read as the integers that were stored; damaged ones are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.readers import contradictions, history, read_quantization
from tests.builds import build
from tests.exporter.quantized_integers import Arrays, Weight, opened, quantize, values
from tests.exporter.weights.test_weights import weights_of
from tests.oracle import checkpoints

AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


@pytest.mark.parametrize(
    ("columns", "group", "block"),
    [(256, 32, 32), (256, 128, 128), (96, -1, 32), (1024, 512, 256), (80, 48, 16), (64, 8, None)],
)
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_integers_are_those_that_were_stored(
    method: str, columns: int, group: int, block: int | None, tmp_path: Path
) -> None:
    weight = Weight(72, columns, columns if group == -1 else group, 4)
    parts = getattr(weight, method)("x")
    tensor = opened(parts, (AWQ if method == "awq" else GPTQ) | {"group_size": group}, tmp_path)
    for most in (1, 1 << 20):
        assert np.array_equal(values(tensor, most), weight.dequantized)
    if block is None:
        assert not isinstance(tensor, IntegerWeight)
        return
    assert isinstance(tensor, IntegerWeight)
    assert (tensor.form.bits, tensor.form.block, tensor.form.zero) == (4, block, None)
    q = np.concatenate([rows.q for rows in tensor.rows(1)])
    assert np.array_equal(q, weight.q)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq_has_integers_of_several_sizes(
    bits: int, sym: bool, version: int, tmp_path: Path
) -> None:
    weight = Weight(64, 96, 32, bits, sym=sym)
    formats = {"checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    parts = weight.gptq("x", less=2 - version)
    tensor = opened(parts, GPTQ | formats | {"bits": bits, "sym": sym}, tmp_path)
    assert isinstance(tensor, IntegerWeight)
    container = 4 if bits <= 4 else 8
    assert tensor.form.bits == container
    assert tensor.form.zero == (1 << (container - 1) if sym else None)
    assert np.array_equal(values(tensor), weight.dequantized)


def shifted(weight: Weight, by: int) -> Weight:
    """The same weight, with other zeros than it has."""
    weight.zeros = (weight.zeros + by) % (1 << weight.bits)
    return weight


def read(parts: Arrays, config: dict[str, Any], folder: Path) -> tuple[NDArray[Any], str]:
    """What is read of x.weight, and what is said."""
    tensor = opened(parts, config, folder)
    return values(tensor), " ".join((*contradictions({"": tensor}), *history(config)))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2", "auto_round:auto_gptq", "unsaid"])
@pytest.mark.parametrize("group", [32, 8])
def test_zeros_that_contradict_symmetry_are_not_read(
    bits: int, form: str, group: int, tmp_path: Path
) -> None:
    expected = Weight(64, 96, group, bits, sym=True).dequantized
    config = GPTQ | {"bits": bits, "group_size": group, "sym": True, "checkpoint_format": form}
    if form.startswith("auto"):
        config = ROUND | {"bits": bits, "group_size": group, "sym": True, "packing_format": form}
    if form == "unsaid":
        del config["sym"], config["checkpoint_format"]
    less = 0 if form == "gptq_v2" else 1
    for by in (0, 1 - 2 * less, 1):
        weight = shifted(Weight(64, 96, group, bits, sym=True), by)
        found, said = read(weight.gptq("x", less), config, tmp_path)
        assert np.array_equal(found, expected)
        assert ("contradict" in said) == bool(by)
    asymmetric = Weight(64, 96, group, bits)
    if form == "unsaid":
        assert np.array_equal(
            read(asymmetric.gptq("x"), config, tmp_path)[0], asymmetric.dequantized
        )
    else:
        with pytest.raises(UserError, match="zero points from 0 to") as error:
            read(asymmetric.gptq("x", less), config, tmp_path)
        assert '"sym" to false' in error.value.hint


def test_modules_may_have_a_symmetry_of_their_own(tmp_path: Path) -> None:
    weight = Weight(64, 96, 32, 4)
    dynamic = {"+:x": {"sym": False}}
    found, said = read(weight.gptq("x"), GPTQ | {"sym": True, "dynamic": dynamic}, tmp_path)
    assert np.array_equal(found, weight.dequantized) and not said
    weight = shifted(Weight(64, 96, 32, 4, sym=True), 1)
    for name in ("x", "z"):
        for config in (
            GPTQ | {"dynamic": {f"+:{name}": {"sym": False}}},
            ROUND | {"extra_config": {name: {"bits": 4, "sym": False}}},
        ):
            found, said = read(weight.gptq("x"), config | {"sym": True}, tmp_path)
            assert np.array_equal(found, weight.dequantized) == (name == "x")
            assert ("contradict" in said) == (name == "z")


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_a_group_size_that_tensors_contradict_is_named(method: str, tmp_path: Path) -> None:
    parts = getattr(Weight(64, 96, 16, 4), method)("x")
    config = {"awq": AWQ, "gptq": GPTQ}[method] | {"group_size": 32}
    with pytest.raises(UserError, match=r"groups of 16 columns, and .* says 32") as error:
        opened(parts, config, tmp_path)
    assert "group_size in config.json" in error.value.hint


def test_awq_without_zero_points_has_its_zeros_in_the_middle(tmp_path: Path) -> None:
    weight = Weight(64, 96, 32, 4, sym=True)
    for by in (0, 1):
        parts = shifted(weight, by).awq("x")
        for said_by in ({"zero_point": False}, {"sym": True}):
            found, said = read(parts, AWQ | said_by, tmp_path)
            assert np.array_equal(found, Weight(64, 96, 32, 4, sym=True).dequantized)
            assert ("contradict" in said) == bool(by)


OF_AUTO_ROUND: dict[str, Any] = {
    **{"autoround_version": "0.16.1", "data_type": "int", "enable_quanted_input": False},
    **{"provider": "auto-round", "to_quant_block_names": "model.layers", "iters": 1000, "lr": 1e-3},
    **{"scale_dtype": "torch.float16", "train_bs": 8, "act_bits": 16, "low_gpu_mem_usage": True},
}
"""AutoRound 0.16.1 and 0.4 write such keys with format auto_gptq and auto_awq."""


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_keys_that_change_no_weight_are_said(method: str, tmp_path: Path) -> None:
    weight = Weight(64, 96, 32, 4, sym=True)
    config = (AWQ if method == "awq" else GPTQ) | OF_AUTO_ROUND | {"calib_seed": 3, "new": None}
    found, said = read(getattr(weight, method)("x"), config, tmp_path)
    assert np.array_equal(found, weight.dequantized)
    assert "autoround_version, enable_quanted_input, provider and 5 more" in said
    for other in ({"data_type": "int_asym_dq"}, {"act_bits": 8}, {"hadamard": True}):
        with pytest.raises(UserError, match=next(iter(other))):
            read_quantization({"quantization_config": config | other})


def test_gptq_columns_in_the_order_of_activations_become_an_order(tmp_path: Path) -> None:
    weight = Weight(40, 128, 32, 4, sym=True).shuffled()
    tensor = opened(weight.gptq("x"), GPTQ | {"desc_act": True}, tmp_path)
    assert isinstance(tensor, IntegerWeight) and tensor.form.ordered
    assert np.array_equal(values(tensor), weight.dequantized)
    order = tensor.order
    assert order is not None
    (rows,) = tensor.rows(1 << 20)
    assert np.array_equal(rows.dequantize(tensor.form), weight.dequantized[:, order])


def test_gptq_modules_may_have_bits_and_groups_of_their_own(tmp_path: Path) -> None:
    weight = Weight(32, 128, 64, 8)
    dynamic = {"dynamic": {"+:.*x": {"bits": 8, "group_size": 64}, "-:.*y": {}}}
    tensor = opened(weight.gptq("x"), GPTQ | dynamic, tmp_path)
    assert np.array_equal(values(tensor), weight.dequantized)


ROUND: dict[str, Any] = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}
ROUND |= {"autoround_version": "0.5.1", "data_type": "int", "iters": 200, "seqlen": 2048}


@pytest.mark.parametrize(
    ("packing", "less"),
    [("auto_gptq", 1), ("gptq", 1), ("gptqmodel", 0), ("", 0), ("auto_awq", None)],
)
def test_auto_round_packs_as_gptq_or_awq(packing: str, less: int | None, tmp_path: Path) -> None:
    weight = Weight(64, 128, 32, 4)
    parts = weight.awq("x") if less is None else weight.gptq("x", less)
    parts.pop("x.g_idx", None)
    config = ROUND | {"packing_format": f"auto_round:{packing}".rstrip(":")}
    assert np.array_equal(values(opened(parts, config, tmp_path)), weight.dequantized)


def test_auto_round_layers_may_have_bits_of_their_own(tmp_path: Path) -> None:
    weight = Weight(64, 128, 32, 8)
    parts = weight.gptq("x")
    del parts["x.g_idx"]
    whole = {"bits": 16, "data_type": "fp"}
    config = ROUND | {"extra_config": {"x": {"bits": 8}, "lm_head": whole}}
    assert np.array_equal(values(opened(parts, config, tmp_path)), weight.dequantized)


def without(name: str) -> Any:
    return lambda parts: parts.pop(name)


def put(name: str, place: Any, value: Any) -> Any:
    return lambda parts: parts[name].__setitem__(place, value)


def recast(name: str, dtype: Any) -> Any:
    return lambda parts: parts.__setitem__(name, parts[name].astype(dtype))


def cut(name: str, by: int = 1) -> Any:
    return lambda parts: parts.__setitem__(name, parts[name][:-by].copy())


DAMAGED: list[tuple[Any, str]] = [
    (without("x.qzeros"), "without x.qzeros"),
    (without("x.qweight"), "without x.qweight"),
    (cut("x.scales"), "has shape"),
    (cut("x.qzeros"), "has shape"),
    (cut("x.g_idx", 28), "has shape"),
    (recast("x.scales", np.int8), "stored as I8"),
    (recast("x.qweight", np.float32), "stored as F32"),
    (put("x.scales", (1, 2), np.nan), "NaN or infinite"),
    (put("x.scales", (0, 0), np.inf), "NaN or infinite"),
    (put("x.g_idx", 3, 4), "g_idx of the tensor x.weight"),
    (put("x.g_idx", 3, -1), "g_idx of the tensor x.weight"),
    (put("x.g_idx", 3, 2), "g_idx of the tensor x.weight"),
]


@pytest.mark.parametrize(("spoil", "message"), DAMAGED)
def test_damaged_parts_are_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    parts = Weight(64, 128, 32, 4).gptq("x")
    spoil(parts)
    with pytest.raises(UserError, match=message) as error:
        values(opened(parts, GPTQ, tmp_path))
    assert error.value.hint


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AWQ | {"version": "gemv"}, "version 'gemv'"),
        (AWQ | {"version": 1}, "version 1"),
        (AWQ | {"bits": 3}, "bits 3"),
        (AWQ | {"zero_point": 0}, "zero_point 0"),
        (AWQ | {"group_size": 0}, "group_size is 0"),
        (AWQ | {"surprise": 1}, "unknown key 'surprise'"),
        (AWQ | {"modules_to_not_convert": [1]}, "not a list of names"),
        (GPTQ | {"bits": 5}, "bits 5"),
        (GPTQ | {"bits": "4"}, "bits '4'"),
        (GPTQ | {"bits": None}, "bits None"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (GPTQ | {"checkpoint_format": "gptq", "format": "gptq_v2"}, "two formats"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format True"),
        (GPTQ | {"adapter": {"name": "lora"}}, "adapter"),
        (GPTQ | {"dynamic": {"x": 1}}, "dynamic is not a table"),
        (GPTQ | {"dynamic": {"+:(": {}}}, "cannot be read"),
        (GPTQ | {"dynamic": {"x": {"adapter": 1}}}, "adapter 1"),
        (GPTQ | {"surprise": 1}, "unknown key 'surprise'"),
        (ROUND | {"surprise": 1}, "unknown key 'surprise'"),
        (ROUND | {"packing_format": "auto_round:fake"}, "packing_format 'auto_round:fake'"),
        (ROUND | {"act_bits": 8}, "act_bits 8"),
        (ROUND | {"data_type": "nv_fp"}, "data_type 'nv_fp'"),
        (ROUND | {"extra_config": {"x": {"data_type": "mx_fp"}}}, "data_type 'mx_fp'"),
        (ROUND | {"extra_config": [1]}, "extra_config is not a table"),
    ],
)
def test_configs_that_change_what_weights_mean_are_refused(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_quantization({"quantization_config": config})
    assert error.value.hint


OLDER: dict[str, tuple[str, dict[str, Any]]] = {
    "gptq": ("quantize_config.json", {"bits": 4, "group_size": 16.0, "desc_act": False}),
    "awq": (
        "quant_config.json",
        {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"},
    ),
}


@pytest.mark.parametrize("method", OLDER)
def test_older_checkpoints_have_their_quantization_beside_the_config(
    method: str, tmp_path: Path
) -> None:
    def parts(stem: str, rows: int, columns: int) -> Any:
        weight = Weight(rows, columns, 16, 4, seed=rows + columns)
        return getattr(weight, method)(stem), weight.dequantized

    model = checkpoints.make("llama", tmp_path / "m")
    plain = (model / "config.json").read_text()
    expected = quantize(model, {}, parts)
    (model / "config.json").write_text(plain)
    with pytest.raises(UserError, match=r"config\.json has no quantization_config"):
        open_checkpoint(model)
    file, config = OLDER[method]
    (model / file).write_text(json.dumps(config))
    tensors = open_checkpoint(model).tensors
    for name, dequantized in expected.items():
        assert np.array_equal(values(tensors[name]), dequantized)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_a_build_has_the_dequantized_weights(method: str, name: str, tmp_path: Path) -> None:
    def parts(stem: str, rows: int, columns: int) -> Any:
        weight = Weight(rows, columns, 16, 4, sym=method == "gptq", seed=rows + columns)
        return getattr(weight, method)(stem), weight.dequantized

    model = checkpoints.make(name, tmp_path / "m")
    config = (AWQ if method == "awq" else GPTQ) | {"group_size": 16}
    expected = quantize(model, config, parts)
    tensors = open_checkpoint(model).tensors
    for weight, dequantized in expected.items():
        assert np.array_equal(values(tensors[weight]), dequantized)
    made = weights_of(build(model, tmp_path / "b", L_max=32, dtype="fp32", weights="dequantize"))
    for weight, dequantized in expected.items():
        if "experts" not in weight:
            assert np.array_equal(made[weight].numpy(), dequantized)
