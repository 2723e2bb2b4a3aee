"""fp16 caches of fp32 models: against transformers, and with unsupported options."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from snapexport.builder import BuildOptions
from snapexport.builder.derive import derive
from snapexport.cli.app import main
from snapexport.compare.loop import Loop
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.memory import cache_bytes, full_cache_bytes
from tests.bound import BoundGraph
from tests.oracle import cases
from tests.oracle.cases import Case, build_of
from tests.oracle.compare import noise, prefill_and_compress

Logits = NDArray[np.float32]

FP16 = Case(cache_dtype="fp16", baseline=True)
GEMMA = Case("gemma2", cache_dtype="fp16", target="portable", prefill_chunk=96)
"""Soft-capped scores, sliding layers, prefill in a single shot."""
LENGTHS = (1, 20, 40, 96)
NOISE = 0.005
"""Largest noise of logits with fp16 caches, relative to the logits' standard deviation."""


def logits(build: Build, tokens: list[int], prompt_length: int) -> Logits:
    """Logits of the prompt's last token and of each forced token after it."""
    with Loop(build) as backend:
        return np.asarray(backend.logits(np.array(tokens), prompt_length))


@pytest.mark.parametrize("case", [FP16, GEMMA], ids=["llama", "gemma2"])
@pytest.mark.parametrize("length", LENGTHS)
def test_fp16_cache_logits_are_close_to_transformers(case: Case, length: int) -> None:
    want = cases.oracle(case, length, 24)
    got = logits(build_of(case), [*want.prompt, *want.tokens[:24]], length)
    np.testing.assert_allclose(got[0], want.prefill_logits, atol=cases.LOGITS)
    assert 0 < noise(got[1:], want.decode_logits) < NOISE


def test_fp16_cache_holds_the_rounded_keys_and_values_of_the_same_positions(tmp_path: Path) -> None:
    build = build_of(FP16)
    plain = derive(build, build.manifest.geometry, tmp_path / "plain", GraphOptions())
    (_, half), (_, single) = (
        prefill_and_compress(cases.RawBuild(one.directory), cases.prompt(70))
        for one in (build, plain)
    )
    for got, expected in zip(half.cache, single.cache, strict=True):
        for states, exact in zip(got, expected, strict=True):
            np.testing.assert_array_equal(states, exact.astype(np.float16))


def test_fp16_decode_step_writes_caches_in_place(capfd: Any) -> None:
    ort.set_default_logger_severity(2)
    graph = BoundGraph(build_of(FP16), "decode")
    caches = {name: array for name, array in graph.arrays.items() if names.is_past(name)}
    graph.arrays[names.POSITION_IDS][:, 0] = [3, 18, 9]
    graph.run()
    assert {array.dtype for array in caches.values()} == {np.dtype(np.float16)}
    for array in caches.values():
        written = [np.flatnonzero(row.any(axis=(0, 2))).tolist() for row in array]
        assert written == [[3], [18], [9]]
    assert "onnxruntime" not in capfd.readouterr().err, "a cache was copied"


def test_only_compressed_caches_have_the_cache_dtype() -> None:
    manifest = build_of(FP16).manifest
    assert (manifest.dtype, manifest.cache_dtype) == ("fp32", "fp16")
    dtypes = {
        name: {spec.dtype for spec in (*graph.inputs, *graph.outputs) if names.is_cache(spec.name)}
        for name, graph in manifest.graphs.items()
    }
    assert dtypes["decode"] == {"float16"}
    assert dtypes["compress"] == {"float32", "float16"}
    assert dtypes["prefill"] == dtypes["baseline-decode"] == {"float32"}


def test_diff_attributes_decode_differences_to_fp16_rounding(tmp_path: Path, capsys: Any) -> None:
    build = build_of(FP16)
    flags = ["--model", str(cases.checkpoint("llama")), "--steps", "4", "--lengths", "12", "70"]
    assert main(["diff", str(build.directory), *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["differences"]
    why = {
        (one["prompt_length"], one["output"].partition(".")[0]): (one["lossless"], one["rounded"])
        for one in found
        if one["system"] == "snapstream"
    }
    assert why == {
        (12, "prefill"): (True, False),
        (12, "decode"): (False, True),
        (70, "prefill"): (True, False),
        (70, "decode"): (False, False),
    }


def test_full_cache_bytes_are_counted_in_the_builds_dtype() -> None:
    plain = build_of(replace(FP16, cache_dtype=None)).manifest
    assert full_cache_bytes(build_of(FP16).manifest) == full_cache_bytes(plain)
    assert full_cache_bytes(plain) == cache_bytes(plain).full


def test_inspect_shows_cache_dtype_and_decode_attention(capsys: Any) -> None:
    directory = str(build_of(FP16).directory)
    assert main(["inspect", directory, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["cache_dtype"], report["decode_attention"]) == ("fp16", "all")
    assert main(["inspect", directory]) == 0
    assert "caches in fp16, attention over all cache slots" in capsys.readouterr().out


def test_cache_dtype_equal_to_the_dtype_is_the_default(tmp_path: Path) -> None:
    options = BuildOptions.of(model="m", out=tmp_path, L_max=64, dtype="fp16", cache_dtype="fp16")
    assert options.graph.cache_dtype is None
