"""Engines of decode steps write caches in place: no kernel copies one."""

from pathlib import Path

import onnx
import pytest

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from tests.rtx.library import ask_kernels


def copied(graph: Path) -> set[str]:
    """Caches that a kernel reads where they came in, which it need not: they are updated in place.

    A kernel that writes into a cache names it by its output alone.
    """
    answer = ask_kernels(graph)
    assert answer.accepted and answer.kernels
    return {
        name
        for _, inputs, outputs in answer.kernels
        for name, _ in inputs
        if names.is_past(name) and outputs
    }


@pytest.mark.parametrize("graph", ["decode", "baseline-decode"])
def test_a_decode_step_copies_no_cache(graph: str, made: Build) -> None:
    assert copied(made.graph(graph)) == set()


def test_a_scale_of_1_would_copy_the_cache_of_keys(made: Build) -> None:
    model = onnx.load(made.graph("decode"), load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "Attention":
            (scale,) = (one for one in node.attribute if one.name == "scale")
            scale.f = 1.0
    path = made.directory / "planted.onnx"
    onnx.save(model, path)
    assert copied(path) == {"past_key_values.0.key", "past_key_values.1.key"}
