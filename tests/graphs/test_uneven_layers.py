"""Layers with heads of their own, other widths and sinks of their own, on every target."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from snapexport.builder import BuildOptions
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.targets import Target
from snapexport.errors import UserError
from tests.graphs.layered import MODELS, Layered, build
from tests.graphs.layered_answer import Answer, answer, clear_prompt
from tests.graphs.layered_runs import Rows, Running

torch.set_num_threads(1)

L_MAX, STEPS = 64, 24
LENGTHS = (37, 64), (5, 21)
TARGETS: tuple[Target, ...] = ("onnxruntime", "portable", "tensorrt", "tensorrt-rtx")
EXACT, HALF = 3e-4, 3e-2
"""Errors of logits, relative to their deviation."""

every_model = pytest.mark.parametrize("name", MODELS)


def geometry_of(model: Layered, **flags: Any) -> CacheGeometry:
    sizes = {"kv_budget": 24, "L_sink": 2, "L_recent": 12, "L_obs": 4, "pool_kernel": 3}
    given = {"model": "", "out": Path(), "L_max": L_MAX}
    return BuildOptions.of(**given | (flags or sizes)).geometry(model.facts)


def compare(
    model: Layered,
    geometry: CacheGeometry,
    out: Path,
    prefix: str = "",
    *,
    noise: float = EXACT,
    blocks: bool = False,
    **options: Any,
) -> None:
    """Logits of a prompt's end and of steps, and kept positions. blocks: of a prompt in blocks."""
    running = Running(build(model, geometry, out, **options), prefix)
    expected = geometry.as_full() if prefix else geometry
    for lengths in LENGTHS:
        prompts = [clear_prompt(model, expected, length) for length in lengths]
        steps = STEPS if expected.compresses else min(STEPS, L_MAX - max(lengths))
        wants = [answer(model, expected, prompt, steps) for prompt in prompts]
        pairs = zip(prompts, wants, strict=True)
        rows = [prefilled(running, *pair, noise, blocks) for pair in pairs]
        decode(running, [*zip(lengths, rows, strict=True)], wants, noise)


def prefilled(
    running: Running, prompt: Sequence[int], want: Answer, noise: float, blocks: bool
) -> dict[str, Any]:
    """A row of decode's caches."""
    logits, row, kept = running.blocks(prompt) if blocks else running.prefill(prompt)
    # Blocks attend to caches that hold fewer bits; elsewhere prefill is exact.
    assert error(logits, want.logits[0]) < (noise if blocks else EXACT)
    for name, positions in kept.items():
        np.testing.assert_array_equal(positions, want.kept[int(name.split(".")[1])])
    return row


def decode(running: Running, requests: list[Any], wants: list[Answer], noise: float) -> None:
    together = Rows.of(running, requests)
    for step in range(len(wants[0].tokens) - 1):
        logits = together.step([want.tokens[step] for want in wants], step)
        assert error(logits, np.stack([want.logits[step + 1] for want in wants])) < noise, step


def error(got: Any, want: Any) -> float:
    return float(np.abs(got - want).max() / want.std())


@pytest.mark.parametrize("target", TARGETS)
@every_model
def test_compressed_caches(name: str, target: Target, tmp_path: Path) -> None:
    compare(MODELS[name], geometry_of(MODELS[name]), tmp_path / "b", target=target)


@pytest.mark.parametrize("target", TARGETS)
@every_model
def test_full_caches(name: str, target: Target, tmp_path: Path) -> None:
    full = geometry_of(MODELS[name], policy="full")
    compare(MODELS[name], full, tmp_path / "b", target=target)


@every_model
def test_a_baseline(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    compare(model, geometry_of(model), tmp_path / "b", "baseline-", baseline=True)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
@every_model
def test_a_single_shot(name: str, target: Target, tmp_path: Path) -> None:
    compare(MODELS[name], geometry_of(MODELS[name]), tmp_path / "b", target=target, chunk=L_MAX)


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        ({"decode_attention": "valid"}, EXACT),
        ({"cache_dtype": "fp16"}, HALF),
        ({"cache_dtype": "int8"}, 0.5),
    ],
    ids=str,
)
@every_model
def test_other_forms_of_caches(
    name: str, options: dict[str, str], noise: float, tmp_path: Path
) -> None:
    model = MODELS[name]
    flags = {"kv_budget": 24, "L_sink": 2, "L_recent": 12, "L_obs": 4, "pool_kernel": 3}
    try:
        geometry = geometry_of(model, **flags, **options)
    except UserError as refused:
        assert "for keys and values that differ in width" in refused.message
        return
    compare(model, geometry, tmp_path / "b", noise=noise, **options)


@pytest.mark.parametrize("options", [{}, {"cache_dtype": "fp16"}, {"target": "tensorrt"}], ids=str)
@every_model
def test_prompts_in_blocks(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Every prompt fits, so that the votes of blocks change nothing."""
    model = MODELS[name]
    whole = geometry_of(model, L_sink=2, L_recent=12, K=L_MAX - 14, L_obs=4, pool_kernel=3)
    noise = HALF if "cache_dtype" in options else EXACT
    compare(model, whole, tmp_path / "b", blocks=True, noise=noise, extend=True, **options)
