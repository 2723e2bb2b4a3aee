"""Causal convolution with a state, against PyTorch's over the whole row at once."""

import numpy as np
import pytest
import torch

from tests.graphs import bodies
from tests.graphs.bodies import exported
from tests.graphs.linear import Array, conv_graph, run_in_place


def convolved(inputs: dict[str, Array]) -> dict[str, Array]:
    """What the graph of one convolution gives. Without `valid`: of all columns."""
    out, last = bodies.run(exported(conv_graph(inputs)), inputs).values()
    return {"out": out, "present": last}


@pytest.mark.parametrize(
    "batch, columns, width, biased",
    [(3, 1, 4, True), (1, 1, 2, False), (1, 9, 4, True), (2, 2, 4, False), (1, 5, 3, True)],
)
def test_chunks_equal_one_convolution(batch: int, columns: int, width: int, biased: bool) -> None:
    rng, channels, chunks = np.random.default_rng(0), 6, 3
    row = rng.standard_normal((batch, channels, columns * chunks), np.float32)
    fixed = {"weight": rng.standard_normal((channels, 1, width), np.float32)}
    fixed |= {"bias": rng.standard_normal(channels, np.float32)} if biased else {}
    past, found = np.zeros((batch, channels, width - 1), np.float32), []
    for x in np.split(row, chunks, axis=2):
        got = convolved({"x": x, "past": past} | fixed)
        past = got["present"]
        found.append(got["out"])
    tensors = {name: torch.from_numpy(one) for name, one in fixed.items()}
    padded = torch.nn.functional.pad(torch.from_numpy(row), (width - 1, 0))
    want = torch.nn.functional.conv1d(padded, **tensors, groups=channels)
    np.testing.assert_allclose(np.concatenate(found, 2), want, atol=1e-5)


@pytest.mark.parametrize("valid", range(7))
def test_columns_after_the_valid_ones_do_not_become_state(valid: int) -> None:
    rng = np.random.default_rng(1)
    x, past = (rng.standard_normal((1, 6, n), np.float32) for n in (6, 3))
    weight = rng.standard_normal((6, 1, 4), np.float32)
    got = convolved({"x": x, "weight": weight, "past": past, "valid": np.array([valid])})
    seen = np.concatenate([past, x[:, :, :valid]], 2)
    np.testing.assert_array_equal(got["present"], seen[:, :, -3:])


@pytest.mark.parametrize("columns", [1, 2, 9])
def test_a_state_may_be_updated_in_its_buffer(columns: int) -> None:
    rng = np.random.default_rng(2)
    shapes = {"x": (2, 6, columns), "weight": (6, 1, 4), "bias": (6,), "past": (2, 6, 3)}
    inputs = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    got = run_in_place(conv_graph(inputs), inputs, "past")
    for found, want in zip(got.values(), convolved(inputs).values(), strict=True):
        np.testing.assert_array_equal(found, want)
