"""OpenVINO calculates linear attention and causal convolutions with a state."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.graphs.bodies import exported, run
from tests.graphs.linear import Array, Sizes, conv_graph, graph_of, recurrence

ov = pytest.importorskip("openvino")

KINDS = (Sizes(), Sizes(groups=4, by_channel=True), Sizes(groups=1, beta=False))


def calculated(model: bytes, inputs: dict[str, Array]) -> Mapping[str, Array]:
    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    found: Mapping[str, Array] = compiled(inputs)  # an output may have several names
    return found


@pytest.mark.parametrize("batch, tokens", [(3, 1), (2, 70)])
@pytest.mark.parametrize("kind", KINDS)
def test_linear_attention_equals_the_recurrence(kind: Sizes, batch: int, tokens: int) -> None:
    inputs = replace(kind, batch=batch, tokens=tokens).random(0)
    got = calculated(exported(graph_of(inputs, "openvino")).SerializeToString(), inputs)
    for name, want in recurrence(inputs).items():
        np.testing.assert_allclose(got[name], want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("batch, columns", [(3, 1), (2, 5)])
def test_a_convolution_equals_onnx_runtimes(batch: int, columns: int) -> None:
    """A sum of rows to which a bias was added was wrong behind a batch of several."""
    rng = np.random.default_rng(0)
    shapes = {"x": (batch, 6, columns), "weight": (6, 1, 4), "bias": (6,), "past": (batch, 6, 3)}
    inputs = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    model = exported(conv_graph(inputs))
    got = calculated(model.SerializeToString(), inputs)
    for name, want in run(model, inputs).items():
        np.testing.assert_allclose(got[name], want, atol=1e-5)
