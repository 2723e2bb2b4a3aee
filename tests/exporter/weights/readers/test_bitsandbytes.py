"""bitsandbytes' weights of 4 and 8 bits, and FBGEMM's fp8, are those that were stored."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.readers import read_quantization
from snapexport.exporter.weights.readers.fp8 import Fp8Tensor
from tests.exporter.quantized_integers import Arrays, opened, values

OF_4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
OF_8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
BLOCK, NESTED = 64, 16


def of_4_bits(rows: int, columns: int, *, nested: bool) -> tuple[Arrays, NDArray[np.float32]]:
    """The parts of a random matrix, and its values. Blocks go across rows."""
    rng = np.random.default_rng(0)
    size = rows * columns
    count = -(-size // BLOCK)
    table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    places = rng.integers(0, 16, size + size % 2).astype(np.uint8)
    state: dict[str, Any] = {"blocksize": BLOCK, "shape": [rows, columns], "dtype": "bfloat16"}
    parts: Arrays = {"x.weight": (places[::2] << 4 | places[1::2])[:, None]}
    parts["x.weight.quant_map"] = table
    factors = rng.random(count).astype(np.float32)
    parts["x.weight.absmax"] = factors
    if nested:
        stored = rng.integers(0, 256, count).astype(np.uint8)
        outer = rng.random(-(-count // NESTED)).astype(np.float32)
        inner = rng.uniform(-1, 1, 256).astype(np.float32)
        parts["x.weight.absmax"] = stored
        parts |= {"x.weight.nested_absmax": outer, "x.weight.nested_quant_map": inner}
        state |= {"nested_blocksize": NESTED, "nested_offset": 0.25}
        factors = inner[stored] * outer.repeat(NESTED)[:count] + np.float32(0.25)
    text = json.dumps(state).encode()
    parts["x.weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
    flat = table[places[:size]] * factors.repeat(BLOCK)[:size]
    return parts, flat.reshape(rows, columns)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("shape", [(64, 128), (33, 35), (7, 1)])
def test_weights_of_4_bits_are_read_by_their_table(
    shape: tuple[int, int], nested: bool, tmp_path: Path
) -> None:
    parts, expected = of_4_bits(*shape, nested=nested)
    tensor = opened(parts, OF_4, tmp_path)
    assert not isinstance(tensor, IntegerWeight)
    for most in (1, 1 << 20):
        assert np.array_equal(values(tensor, most), expected)


def test_weights_of_8_bits_are_integers_with_a_scale_a_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q, largest = rng.integers(-127, 128, (40, 96)), rng.random(40).astype(np.float32)
    parts = {"x.weight": q.astype(np.int8), "x.SCB": largest}
    parts["x.weight_format"] = np.zeros((), np.uint8)
    tensor = opened(parts, OF_8, tmp_path)
    assert isinstance(tensor, IntegerWeight) and tensor.form.zero == 128
    np.testing.assert_allclose(values(tensor), q * largest[:, None] / 127, rtol=1e-6)


def test_fbgemms_rows_have_a_scale_each(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q, scales = rng.normal(size=(40, 200)), rng.random((40, 1)).astype(np.float32)
    parts = {"x.weight": q.astype(ml_dtypes.float8_e4m3fn), "x.weight_scale": scales}
    given = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    tensor = opened(parts, given, tmp_path)
    assert isinstance(tensor, Fp8Tensor)
    assert np.array_equal(values(tensor), parts["x.weight"].astype(np.float32) * scales)


STATE = "x.weight.quant_state.bitsandbytes__nf4"


def state(**changes: Any) -> Any:
    def spoil(parts: Arrays) -> None:
        found = json.loads(bytes(parts[STATE])) | changes
        parts[STATE] = np.frombuffer(json.dumps(found).encode(), np.uint8)

    return spoil


def put(name: str, value: Any) -> Any:
    return lambda parts: parts.__setitem__(name, value)


DAMAGED: list[tuple[Any, str]] = [
    (lambda parts: parts.pop("x.weight.absmax"), r"without x\.weight\.absmax"),
    (lambda parts: parts.pop("x.weight"), r"without x\.weight"),
    (lambda parts: parts.pop("x.weight.nested_absmax"), r"without x\.weight\.nested_absmax"),
    (lambda parts: parts.pop(STATE), "has no scales"),
    (put(STATE, np.frombuffer(b"[1]", np.uint8)), "is not a table"),
    (put(STATE, np.frombuffer(b"{", np.uint8)), "is not a table"),
    (put(STATE, np.zeros(1 << 20, np.uint8)), "is not a table"),
    (state(shape=[64]), "not a matrix"),
    (state(shape=[64, 64]), "has not the bytes"),
    (state(shape=[-64, -128]), "not a matrix"),
    (state(blocksize=0), "a block of the tensor"),
    (state(blocksize=32), "has shape"),
    (state(nested_blocksize="8"), "a block of the tensor"),
    (state(nested_offset=1e300), "nested_offset"),
    (state(nested_offset=None), "nested_offset"),
    (put("x.weight.quant_map", np.full(16, np.nan, np.float32)), "NaN or infinite"),
    (put("x.weight.nested_absmax", np.full(8, np.inf, np.float32)), "NaN or infinite"),
    (put("x.weight.quant_map", np.zeros(15, np.float32)), "has shape"),
]


@pytest.mark.parametrize(("spoil", "message"), DAMAGED)
def test_damaged_parts_are_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    parts, _ = of_4_bits(64, 128, nested=True)
    spoil(parts)
    with pytest.raises(UserError, match=message) as error:
        values(opened(parts, OF_4, tmp_path))
    assert error.value.hint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (OF_4 | {"bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
        (OF_4 | {"load_in_8bit": True}, "load_in_8bit True"),
        (OF_8 | {"load_in_8bit": False}, "load_in_8bit False"),
        (OF_8 | {"load_in_8bit": 1}, "load_in_8bit 1"),
        (OF_8 | {"surprise": 1}, "unknown key 'surprise'"),
        ({"quant_method": "fbgemm_fp8", "surprise": 1}, "unknown key 'surprise'"),
        ({"quant_method": "hqq"}, "the method 'hqq'"),
        ({"quant_method": "quanto"}, "the method 'quanto'"),
    ],
)
def test_configs_that_change_what_weights_mean_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_quantization({"quantization_config": given})
    assert error.value.hint
