"""The real parser and builder accept linear attention whose state is updated in its buffer."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.graphs.bodies import exported
from tests.graphs.linear import Sizes, graph_of
from tests.rtx.library import ask_kernels

KINDS = {
    "Qwen3-Next": Sizes(groups=16, heads=32, key_dim=128, value_dim=128),
    "Kimi Linear": Sizes(groups=32, heads=32, key_dim=128, value_dim=128, by_channel=True),
    "Granite 4 H": Sizes(groups=1, heads=128, key_dim=128, value_dim=64, beta=False),
}


@pytest.mark.parametrize("batch, tokens", [(4, 1), (1, 77)])
@pytest.mark.parametrize("kind", KINDS)
def test_one_kernel_reads_the_state(kind: str, batch: int, tokens: int, tmp_path: Path) -> None:
    """Others read what it wrote elsewhere, so the present state may take the past one's buffer."""
    inputs = replace(KINDS[kind], batch=batch, tokens=tokens).random(0)
    path = tmp_path / "graph.onnx"
    onnx.save(exported(graph_of(inputs, "tensorrt-rtx")), path)
    answer = ask_kernels(path)
    assert answer.accepted and not answer.errors
    reads = [name for _, read, _ in answer.kernels for name, _ in read]
    assert reads.count("past_state") == 1
