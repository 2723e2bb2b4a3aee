"""The integers of GGUF's types, dequantized, equal the package `gguf`'s floats bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")

from gguf import GGML_QUANT_SIZES, GGUFWriter, dequantize
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.read.gguf import header, tensors
from snapexport.exporter.read.gguf.tensors import GgufIntegers
from snapexport.exporter.weights.forms.integers import LARGEST_SCALE
from snapexport.exporter.weights.readers.gguf import KINDS
from snapexport.exporter.weights.tensor_file import blocks
from tests.exporter import gguf_files

ROWS, COLUMNS = 37, 512
PLACES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "Q1_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)},
}
"""Where a block has its fp16 factors. IQ1_M's is in pieces."""


def random_rows(name: str) -> NDArray[np.uint8]:
    """Rows of all bytes, but for factors: those are numbers."""
    rng = np.random.default_rng(0)
    elements, nbytes = GGML_QUANT_SIZES[Kind[name]]
    raw = rng.integers(0, 256, (ROWS * COLUMNS // elements, nbytes), np.uint8)
    for place in PLACES.get(name, ()):
        factors = rng.normal(size=(len(raw), 1)).astype(np.float16)
        raw[:, place : place + 2] = factors.view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(0, 240, len(raw))
    if name == "IQ1_M":
        raw[:, 55] &= 0xBF
    return raw.reshape(ROWS, -1)


def stored(name: str, raw: NDArray[np.uint8], folder: Path) -> GgufIntegers:
    writer = GGUFWriter(folder / "one.gguf", "llama")
    writer.add_tensor("one", raw, raw_dtype=Kind[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = header.read_header(folder / "one.gguf", tensors.block_sizes())
    _, nbytes = GGML_QUANT_SIZES[Kind[name]]
    return GgufIntegers(read.file, "one", read.tensors["one"], KINDS[name], nbytes)


def values(weight: GgufIntegers, multiple: int, most: int) -> Any:
    return np.concatenate(list(blocks(weight, multiple, most))).reshape(weight.shape)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "Q1_0"])
def test_integers_equal_the_dequantized_weight(name: str, tmp_path: Path) -> None:
    raw = random_rows(name)
    weight, expected = stored(name, raw, tmp_path), dequantize(raw, Kind[name])
    for multiple, most in ((1, 1 << 20), (COLUMNS, 1), (ROWS * COLUMNS, 1)):
        got = values(weight, multiple, most)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))
    form, count = weight.form, 0
    for rows in weight.rows(3 * COLUMNS):
        count += len(rows.q)
        assert rows.q.max() < 1 << form.bits
        assert rows.scales.shape == (len(rows.q), COLUMNS // form.block)
        assert (rows.minima is not None) == form.minima
        assert rows.q.dtype == np.uint8 and rows.scales.dtype == np.float32
    assert count == ROWS


def test_every_type_of_blocks_that_gguf_dequantizes_has_integers() -> None:
    from gguf.quants import _type_traits

    plain = {"F32", "F16", "BF16"}
    assert {kind.name for kind in _type_traits} - plain == set(KINDS) - {"Q1_0"}


def test_bits_of_q1_0_are_signs(tmp_path: Path) -> None:
    """The package `gguf` can't dequantize them."""
    raw = random_rows("Q1_0")
    scales = raw.reshape(-1, 18)[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(raw.reshape(-1, 18)[:, 2:], axis=1, bitorder="little")
    expected = np.where(bits == 1, scales, -scales).reshape(ROWS, COLUMNS)
    assert np.array_equal(values(stored("Q1_0", raw, tmp_path), 1, 1), expected)


@pytest.mark.parametrize(("name", "value"), [("Q4_0", np.nan), ("Q4_K", np.inf), ("MXFP4", 255)])
def test_scales_that_are_not_numbers_are_refused(name: str, value: float, tmp_path: Path) -> None:
    raw = random_rows(name)
    if name == "MXFP4":
        raw[3, 17] = value
    else:
        raw[3, :2] = np.array([value], np.float16).view(np.uint8)
    with pytest.raises(UserError, match=r"scale of the tensor one of .* is NaN or infinite"):
        list(stored(name, raw, tmp_path).rows(1 << 20))


def test_scales_whose_products_overflow_are_refused(tmp_path: Path) -> None:
    raw = random_rows("MXFP4")
    raw[0, 0] = 128 + int(np.log2(LARGEST_SCALE)) + 1
    with pytest.raises(UserError, match="NaN or infinite"):
        list(stored("MXFP4", raw, tmp_path).rows(1 << 20))


def test_matrices_are_integers_with_their_rows_moved(tmp_path: Path) -> None:
    """Llama's queries and keys have the rows of each head in another order."""
    opened = open_checkpoint(gguf_files.make("llama", tmp_path, Kind.Q8_0)).tensors
    moved = opened["model.layers.0.self_attn.q_proj.weight"]
    assert isinstance(moved, GgufIntegers) and moved.moved is not None
    some = next(iter(moved.rows(1 << 20)))
    expected = values(moved, 1, 1 << 20)
    np.testing.assert_array_equal(some.dequantize(moved.form), expected)


def with_factors(value: float) -> Any:
    def spoil(writer: GGUFWriter) -> None:
        for end in ("scale", "input_scale"):
            writer.add_tensor(f"blk.0.attn_q.{end}", np.array([value], np.float32))

    return spoil


def test_a_matrix_may_have_a_factor(tmp_path: Path) -> None:
    """As NVFP4 has."""
    query = "model.layers.0.self_attn.q_proj.weight"
    for name in ("plain", "scaled"):
        (tmp_path / name).mkdir()
    file = gguf_files.make("qwen2", tmp_path / "plain", Kind.Q8_0)
    plain = open_checkpoint(file).tensors[query]
    file = gguf_files.make("qwen2", tmp_path / "scaled", Kind.Q8_0, spoil=with_factors(0.5))
    scaled = open_checkpoint(file).tensors[query]
    assert isinstance(plain, GgufIntegers) and isinstance(scaled, GgufIntegers)
    assert np.array_equal(values(scaled, 1, 1 << 20), values(plain, 1, 1 << 20) / 2)


@pytest.mark.parametrize("value", [np.nan, -1.0, 0.0, np.inf])
def test_a_factor_that_is_not_a_positive_number_is_refused(value: float, tmp_path: Path) -> None:
    file = gguf_files.make("qwen2", tmp_path, Kind.Q8_0, spoil=with_factors(value))
    with pytest.raises(UserError, match=r"attn_q\.scale of .* is not a factor"):
        open_checkpoint(file)
