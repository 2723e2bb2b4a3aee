"""Linear attention with a state, on every target, against its recurrence in float64."""

from dataclasses import replace

import numpy as np
import pytest

from snapexport.contract.targets import Target
from tests.graphs import bodies
from tests.graphs.bodies import exported
from tests.graphs.linear import Array, Sizes, graph_of, recurrence

TARGETS: tuple[Target, ...] = ("onnxruntime", "portable", "openvino", "tensorrt", "tensorrt-rtx")
KINDS = {
    "gated delta": Sizes(),
    "KDA": Sizes(groups=4, by_channel=True),
    "SSD": Sizes(groups=1, beta=False),
    "SSD, by channel": Sizes(groups=1, beta=False, by_channel=True),
}


def compare(target: Target, inputs: dict[str, Array]) -> None:
    got, want = bodies.run(exported(graph_of(inputs, target)), inputs), recurrence(inputs)
    for name, one in want.items():
        np.testing.assert_allclose(got[name], one, rtol=0, atol=1e-5 * np.abs(one).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_one_token_of_each_row_equals_the_recurrence(target: Target, kind: str) -> None:
    compare(target, replace(KINDS[kind], batch=3).random(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_token_of_zeros_leaves_the_state_as_it_is(target: Target, kind: str) -> None:
    inputs = KINDS[kind].random(0)
    zeros = {n: np.zeros_like(inputs[n]) for n in ("key", "decay", "beta") if n in inputs}
    got = bodies.run(exported(graph_of(inputs | zeros, target)), inputs | zeros)
    np.testing.assert_array_equal(got["present_state"], inputs["past_state"])
