"""Caches in 8 bits: scales against their definition, and builds against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.builder import BuildOptions
from snapexport.builder.derive import derive
from snapexport.cli.app import main
from snapexport.compare.loop import Loop
from snapexport.contract import names
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.memory import cache_bytes
from snapexport.measure.bench.costs import Costs
from snapexport.methods.int8_cache.surgery import ENOUGH, LEAST, MARGIN, ROOM
from tests.bound import BoundGraph
from tests.graphs.test_functions import run
from tests.oracle import cases
from tests.oracle.cases import Case, build_of
from tests.oracle.compare import noise

Array = NDArray[np.float32]

INT8 = Case(cache_dtype="int8", decode_batches=(1, 3), baseline=True)
GEMMA = Case("gemma2", cache_dtype="int8", prefill_chunk=96)
"""Soft-capped scores, sliding layers, prefill in a single shot."""
NOISE = {1: 0.15, 20: 0.1, 96: 0.05}
"""Largest noise of logits by prompt length, relative to the logits' standard deviation.
It is largest for one token: a scale of one token fits later ones badly."""


def expected_scale(states: Array, length: int, parts: int) -> Array:
    """[Hkv,T,D] -> [Hkv,D], by the definition."""
    heads, _, width = states.shape
    prompt = states[:, :length].reshape(heads, length, parts, width // parts).astype(np.float64)
    channel = np.tile(np.sqrt((prompt**2).sum(2)).max(1), parts)
    head = channel.max(-1, keepdims=True)
    share = min(1.0, length / ENOUGH)
    roomy = (share * channel + (1 - share) * head) * (1 + ROOM / length)
    return np.asarray(np.maximum(roomy, LEAST * head) * MARGIN / 127, np.float32)


def scale_of(states: Array, length: int, parts: int) -> Array:
    feeds = {"states": states[None], "length": np.array([length])}
    (scale,) = run("Int8Scale", feeds, {"parts": [parts]})
    return np.asarray(scale[0, :, 0])


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [1, 5, 63, 64, 80])
def test_int8_scale_equals_its_definition(length: int, parts: int) -> None:
    states = np.random.default_rng(length).standard_normal((2, 80, 8)).astype(np.float32)
    states[0, :, 3] *= 50
    states[1, :, 5] = 0
    scale = scale_of(states, length, parts)
    np.testing.assert_allclose(scale, expected_scale(states, length, parts), rtol=1e-5)


def test_int8_scale_ignores_padding() -> None:
    states = np.random.default_rng(0).standard_normal((2, 80, 8)).astype(np.float32)
    spoilt = states.copy()
    spoilt[:, 70:] = np.nan
    np.testing.assert_array_equal(scale_of(spoilt, 70, 2), scale_of(states, 70, 2))


def test_int8_scale_of_keys_does_not_change_under_rope() -> None:
    """RoPE rotates pairs of channels. Their scale must not change with the position."""
    rng = np.random.default_rng(0)
    pairs, angle = rng.standard_normal((2, 80, 4, 2)), rng.uniform(0, 6, (2, 80, 4))
    turned = np.stack(
        [
            pairs[..., 0] * np.cos(angle) - pairs[..., 1] * np.sin(angle),
            pairs[..., 0] * np.sin(angle) + pairs[..., 1] * np.cos(angle),
        ],
        axis=-1,
    )
    as_heads = [x.swapaxes(2, 3).reshape(2, 80, 8).astype(np.float32) for x in (pairs, turned)]
    one, other = (scale_of(states, 80, 2) for states in as_heads)
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_int8_scale_of_zeros_is_positive() -> None:
    zeros = np.zeros((1, 4, 8), np.float32)
    scale = scale_of(zeros, 3, 2)
    assert (scale > 0).all()
    (rows,) = run("Int8Rows", {"states": zeros[None], "scale": scale[:, None, None]}, {})
    assert not rows.any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_int8_rows_are_rounded_and_clipped(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    states = (rng.standard_normal((1, 2, 3, 4)) * spread).astype(np.float32)
    scale = rng.uniform(0.01, 1, (1, 2, 1, 4)).astype(np.float32)
    (rows,) = run("Int8Rows", {"states": states, "scale": scale}, {})
    assert rows.dtype == np.int8
    np.testing.assert_array_equal(rows, np.clip(np.round(states / scale), -127, 127))


@pytest.mark.parametrize("case", [INT8, GEMMA], ids=["llama", "gemma2"])
@pytest.mark.parametrize("length", NOISE)
def test_int8_cache_logits_are_close_to_transformers(case: Case, length: int) -> None:
    want = cases.oracle(case, length, 24)
    tokens = np.array([*want.prompt, *want.tokens[:24]])
    with Loop(build_of(case)) as backend:
        got = np.asarray(backend.logits(tokens, length))
    np.testing.assert_allclose(got[0], want.prefill_logits, atol=cases.LOGITS)
    assert 0 < noise(got[1:], want.decode_logits) < NOISE[length]


def test_int8_decode_step_equals_fp32_attention_over_the_dequantized_caches(
    tmp_path: Path, capfd: Any
) -> None:
    """fp32 caches of the same rounded numbers give the same logits, and nothing is copied.

    Up to the new token's own row, which is rounded on one side alone.
    """
    ort.set_default_logger_severity(2)
    build = build_of(INT8)
    eight = filled(BoundGraph(build, "decode"))
    plain = BoundGraph(
        derive(build, build.manifest.geometry, tmp_path / "plain", GraphOptions()), "decode"
    )
    for spec in build.manifest.graphs["baseline-decode"].inputs:
        held = eight.arrays[spec.name]
        is_past = names.is_past(spec.name)
        scale = eight.arrays[f"{spec.name}_scale"] if is_past else 1
        plain.arrays[spec.name][...] = held * scale
    plain.arrays[names.PROMPT_LENGTH][:] = eight.arrays[names.PROMPT_LENGTH]
    before = {name: array.copy() for name, array in eight.arrays.items()}
    logits, expected = eight.run().copy(), plain.run()
    assert noise(logits, expected) < 0.02
    for name, array in eight.arrays.items():
        if name.endswith("_scale"):
            np.testing.assert_array_equal(array, before[name])
        elif names.is_past(name):
            changed = (array != before[name]).any(axis=(1, 3))
            assert [list(np.flatnonzero(row)) for row in changed] == [[7], [13], [6]], name
            rows = plain.arrays[name] / eight.arrays[f"{name}_scale"]
            assert np.abs(rows - array).max() < 2
    assert "onnxruntime" not in capfd.readouterr().err, "a cache was copied"


def filled(graph: BoundGraph) -> BoundGraph:
    """Random caches and scales; positions in cache slots 7, 13 and 6."""
    rng = np.random.default_rng(0)
    for name, array in graph.arrays.items():
        if name.endswith("_scale"):
            array[...] = rng.uniform(0.08, 0.1, array.shape)
        elif names.is_past(name):
            array[...] = rng.integers(-30, 31, array.shape)
    slots = len(graph.arrays[names.INPUT_IDS])
    graph.arrays[names.INPUT_IDS][:, 0] = [5, 100, 77][:slots]
    graph.arrays[names.POSITION_IDS][:, 0] = [7, 61, 70][:slots]
    graph.arrays[names.PROMPT_LENGTH][:] = [5, 40, 70][:slots]
    return graph


def test_int8_decode_graph_of_one_batch_slot_equals_that_of_all() -> None:
    whole, first = (filled(BoundGraph(build_of(INT8), one)) for one in ("decode", "decode.1"))
    for name, array in first.arrays.items():
        array[...] = whole.arrays[name][:1]
    np.testing.assert_allclose(first.run(), whole.run()[:1], atol=1e-5)


def test_manifest_of_an_int8_cache_lists_the_scales() -> None:
    manifest = build_of(INT8).manifest
    assert manifest.graph_options == GraphOptions(
        cache_dtype="int8", decode_attention="valid", share_weights=False
    )
    specs = {
        (graph, spec.name): (spec.dtype, spec.shape)
        for graph in ("compress", "decode")
        for spec in (*manifest.graphs[graph].inputs, *manifest.graphs[graph].outputs)
    }
    for part in ("key", "value"):
        assert specs["decode", f"past_key_values.1.{part}"] == ("int8", [3, 2, 32, 16])
        assert specs["decode", f"past_key_values.1.{part}_scale"] == ("float32", [3, 2, 1, 16])
        assert specs["decode", f"present.1.{part}_scale"] == ("float32", [3, 2, 1, 16])
        assert specs["compress", f"present.1.{part}"] == ("int8", [1, 2, 32, 16])
        assert specs["compress", f"present.1.{part}_scale"] == ("float32", [1, 2, 1, 16])


def test_roofline_counts_the_bytes_of_int8_caches() -> None:
    build = build_of(INT8)
    caches = cache_bytes(build.manifest)
    for full_cache, expected in ((False, caches.decode), (True, caches.full)):
        layers = Costs.of(build, full_cache=full_cache).layers
        held = [layer.slot * layer.geometry.cache_slots + layer.fixed for layer in layers]
        assert build.manifest.batch * sum(held) == expected


def test_diff_names_int8_rounding_as_the_cause(tmp_path: Path, capsys: Any) -> None:
    build = build_of(INT8)
    flags = ["--model", str(cases.checkpoint("llama")), "--steps", "4", "--lengths", "12"]
    assert main(["diff", str(build.directory), *flags]) == 0
    assert "rounded: the cost of a cache in int8" in " ".join(capsys.readouterr().out.split())


def test_int8_cache_is_supported_with_int4_weights(tmp_path: Path) -> None:
    options = BuildOptions.of(model="m", out=tmp_path, L_max=64, cache_dtype="int8", weights="int4")
    assert options.graph == GraphOptions(
        cache_dtype="int8", decode_attention="valid", share_weights=False
    )
