"""Rounding by search and by what layers read: its error against plain rounding's, and edges."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.choice import INT4, INT8, Rounded, of_flag
from snapexport.exporter.weights.forms.integers import Form, IntegerRows
from snapexport.exporter.weights.forms.rounding import Inputs, fit
from snapexport.exporter.weights.tensor_file import Calculated
from tests.exporter.weights.forms.test_integers import plainly_rounded

Array = NDArray[np.float32]
BLOCK = INT4.block


def squares(rows: Array, values: Array, weights: Array | float = 1.0) -> NDArray[np.float64]:
    """The weighted squared error of each block."""
    found: NDArray[np.float64] = (weights * (rows.astype(np.float64) - values) ** 2).sum(-1)
    return found


def values_of(found: IntegerRows, form: Form, shape: tuple[int, ...]) -> Array:
    return found.dequantize(form).reshape(shape)


def samples(columns: int, seed: int) -> Array:
    """Inputs whose channels are of different sizes, and go together."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((columns, columns)) * 0.3 / np.sqrt(columns) + np.eye(columns)
    sizes = np.exp(rng.standard_normal(columns))
    return np.asarray(rng.standard_normal((512, columns)) @ mixed * sizes, np.float32)


def inputs_of(read: Array) -> Inputs:
    blocks = read.reshape(len(read), -1, BLOCK)
    return Inputs(np.einsum("tci,tcj->cij", blocks, blocks))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from((INT4, INT8)), st.integers(0, 2**32 - 1), st.floats(0, 4))
@example(INT8, 1600801, 3.036553160344414)
def test_error_of_no_block_exceeds_plain_rounding(form: Form, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.exp(spread * rng.standard_normal((5, 3, 1)))
    rows = np.asarray(
        rng.standard_normal((5, 3, BLOCK)) * sizes + rng.standard_normal(), np.float32
    )
    q, scales = plainly_rounded(rows, form)
    plain = (q.astype(np.float32) - form.middle) * scales[..., None]
    got = values_of(fit(rows, form), form, rows.shape)
    assert (squares(rows, got) <= squares(rows, plain) * (1 + 1e-4)).all()


@pytest.mark.parametrize("form", [INT4, INT8])
def test_known_inputs_lower_the_error_of_a_layer(form: Form) -> None:
    rows = np.random.default_rng(0).standard_normal((64, 4, BLOCK), np.float32)
    read = samples(4 * BLOCK, 1)

    def error(inputs: Inputs | None) -> float:
        got = values_of(fit(rows, form, inputs), form, rows.shape)
        return float(np.square((rows - got).reshape(64, -1) @ read.T).sum())

    assert error(inputs_of(read)) < 0.8 * error(None)


@pytest.mark.parametrize("with_inputs", [False, True])
@pytest.mark.parametrize("form", [INT4, INT8])
def test_edges_of_the_range_are_kept(form: Form, with_inputs: bool) -> None:
    """Zeros, constants, lone values, and the largest and smallest magnitudes."""
    rows = np.zeros((7, 1, BLOCK), np.float32)
    rows[1], rows[2] = 0.3, -1e-20
    rows[3, 0, 5], rows[4, 0, 7] = 7.0, -1e30
    rows[5, 0, :2] = 3.4e38, -3.4e38
    rows[6, 0, ::2] = 1e-30
    inputs = Inputs(np.eye(BLOCK, dtype=np.float32)[None]) if with_inputs else None
    found = fit(rows, form, inputs)
    with np.errstate(all="raise", under="ignore"):
        got = values_of(found, form, rows.shape)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[:5], rows[:5], rtol=1e-5)
    np.testing.assert_allclose(got[6], rows[6], rtol=1e-5)
    np.testing.assert_allclose(got[5], rows[5], rtol=0.15)


def test_inputs_that_are_always_zero_are_rounded_as_others() -> None:
    rows = np.random.default_rng(0).standard_normal((8, 2, BLOCK), np.float32)
    products = inputs_of(samples(2 * BLOCK, 0)).products
    products[1] = 0
    got = values_of(fit(rows, INT4, Inputs(products)), INT4, rows.shape)
    assert (squares(rows, got) < 0.03 * squares(rows, rows * 0)).all()


def test_inputs_of_other_blocks_are_not_used() -> None:
    rows = np.random.default_rng(0).standard_normal((8, 4, 32), np.float32)
    form = Form(4, 32, None)
    known = fit(rows, form, inputs_of(samples(128, 0)))
    np.testing.assert_array_equal(known.q, fit(rows, form).q)


class Zeros(Calculated):
    """A tensor whose shape is all that matters."""

    dtype = "F32"
    shape: tuple[int, ...] = ()

    def __init__(self, shape: tuple[int, ...], value: float = 0.0) -> None:
        self.shape, self.value = shape, value

    def blocks(self, multiple: int, most: int) -> list[NDArray[np.generic]]:  # type: ignore[override]
        return [np.full(self.shape, self.value, np.float32).reshape(-1)]


@pytest.mark.parametrize(
    ("name", "shape", "bits", "block"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), 4, 64),
        ("model.layers.0.self_attn.v_proj.weight", (32, 64), 8, 64),
        ("model.layers.0.self_attn.k_proj.weight", (64, 64), 4, 64),
        ("model.embed_tokens.weight", (500, 64), 4, 64),
        ("model.layers.0.mlp.experts.gate_up", (8, 256, 64), 4, 64),
        ("model.layers.0.mlp.experts.down", (8, 64, 128), 4, 64),
        ("model.layers.0.mlp.experts.gate_up", (8, 192, 64), 4, 32),
        ("model.layers.0.mlp.experts.down", (8, 64, 96), 4, 32),
    ],
)
def test_int4_has_a_form_by_name_and_shape(
    name: str, shape: tuple[int, ...], bits: int, block: int
) -> None:
    weight = Rounded(INT4).of(name, Zeros(shape))
    assert weight is not None
    assert (weight.form.bits, weight.form.block, weight.form.zero) == (bits, block, None)


@pytest.mark.parametrize(("layers", "wide"), [(15, []), (16, [0, 1, 14, 15])])
def test_int4_of_deep_models_has_outer_down_projections_of_8_bits(
    layers: int, wide: list[int]
) -> None:
    decoder: Any = SimpleNamespace(layers=range(layers), names=SimpleNamespace(layers="m.layers"))
    chosen = of_flag("int4", decoder)
    names = [f"m.layers.{place}.mlp.down_proj.weight" for place in range(layers)]
    made = [chosen.of(name, Zeros((64, 128))) for name in names]
    assert [place for place, one in enumerate(made) if one and one.form.bits == 8] == wide


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    weight = Rounded(INT4).of("w", Zeros((2, 64), value))
    assert weight is not None
    with pytest.raises(UserError, match="w has NaN or infinite values"):
        list(weight.rows(1 << 20))
