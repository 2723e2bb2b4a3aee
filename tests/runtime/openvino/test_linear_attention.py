"""OpenVINO's linear attention with a state equals the recurrence."""

from dataclasses import replace

import numpy as np
import pytest

from tests.graphs.bodies import exported
from tests.graphs.linear import Sizes, graph_of, recurrence

ov = pytest.importorskip("openvino")

KINDS = (Sizes(), Sizes(groups=4, by_channel=True), Sizes(groups=1, beta=False))


@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("kind", KINDS)
def test_openvino_calculates_the_recurrence(kind: Sizes, tokens: int) -> None:
    inputs = replace(kind, tokens=tokens).random(0)
    core = ov.Core()
    model = core.read_model(exported(graph_of(inputs, "openvino")).SerializeToString())
    run = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    got = run(inputs)
    for name, want in recurrence(inputs).items():
        np.testing.assert_allclose(got[name], want, rtol=0, atol=1e-5 * np.abs(want).max())
