"""Engines of decode steps write caches in place: no kernel copies one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from snapexport.builder import BuildOptions
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from tests.graphs import layered
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


@pytest.mark.parametrize("graph", ["prefill", "decode"])
def test_a_cache_that_two_layers_read_is_not_copied(graph: str, tmp_path: Path) -> None:
    wide = layered.Layer(key_dim=64, value_dim=64)
    model = layered.Layered((wide, replace(wide, cache_of=0)))
    given = {"model": "", "out": tmp_path, "L_max": 512, "kv_budget": 128, "prefill_chunk": 32}
    geometry = BuildOptions.of(**given).geometry(model.facts)
    options: dict[str, Any] = {"target": "tensorrt-rtx", "dtype": "fp16", "chunk": 32}
    assert copied(layered.build(model, geometry, tmp_path / "b", **options).graph(graph)) == set()


def test_a_scale_of_1_would_copy_the_cache_of_keys(made: Build) -> None:
    model = onnx.load(made.graph("decode"), load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "Attention":
            (scale,) = (one for one in node.attribute if one.name == "scale")
            scale.f = 1.0
    path = made.directory / "planted.onnx"
    onnx.save(model, path)
    assert copied(path) == {"past_key_values.0.key", "past_key_values.1.key"}
