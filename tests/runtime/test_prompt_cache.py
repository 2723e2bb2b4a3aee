"""Prompts that begin alike: what stands in prefill's cache is not calculated again."""

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.runtime.onnxruntime_engine import OnnxRuntimeEngine
from snapexport.runtime.predictions import Logits

C = 24  # the tiny build's prefill chunk


def prompt(length: int, seed: int = 0, common: int = 0) -> list[int]:
    """Random tokens after `common` ones that all prompts share."""
    rng = np.random.default_rng(seed)
    return [*range(3, 3 + common), *rng.integers(3, 257, length - common).tolist()]


def prefill(engine: OnnxRuntimeEngine, ids: list[int]) -> Logits:
    """The whole prompt into slot 0, as the scheduler would feed it."""
    ends = [*range(C, len(ids), C), len(ids)]
    for end in ends:
        start = max(0, end - C)
        said = engine.prefill(0, ids[start:end], start, len(ids))
    return said.logits.copy()


def runs(engine: OnnxRuntimeEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each chunk that is really run."""
    bound, counted = engine._prefill._bound, []
    run = bound.run
    monkeypatch.setattr(bound, "run", lambda: (counted.append(1), run())[1])
    return counted


@pytest.mark.parametrize(
    ("first", "second", "skipped"),
    [
        (prompt(60, 1, common=50), prompt(60, 2, common=50), 1),
        (prompt(60, 1, common=20), prompt(60, 2, common=20), 0),
        (prompt(48, 1, common=48), prompt(64, 2, common=48), 2),
        (prompt(64, 1, common=64), prompt(64, 1, common=64), 1),
        (prompt(20, 1, common=20), prompt(60, 1, common=20), 0),
        (prompt(60, 1, common=48), prompt(10, 1, common=10), 0),
    ],
)
def test_a_common_beginning_is_kept_to_the_bit(
    tiny_build: Build,
    monkeypatch: pytest.MonkeyPatch,
    first: list[int],
    second: list[int],
    skipped: int,
) -> None:
    fresh = prefill(OnnxRuntimeEngine(tiny_build), second)
    engine = OnnxRuntimeEngine(tiny_build)
    prefill(engine, first)
    counted = runs(engine, monkeypatch)
    assert np.array_equal(prefill(engine, second), fresh)
    assert len(counted) == max(1, -(-len(second) // C)) - skipped


def test_engines_of_one_model_share_it(tiny_build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(60)
    alone = prefill(OnnxRuntimeEngine(tiny_build, baseline=True), ids)
    first = OnnxRuntimeEngine(tiny_build)
    second = OnnxRuntimeEngine(tiny_build, baseline=True, prompt_cache=first.prompt_cache)
    prefill(first, ids)
    counted = runs(second, monkeypatch)
    assert np.array_equal(prefill(second, ids), alone)
    assert len(counted) == 2  # of three: the second chunk was overlapped by the last


def test_nothing_is_kept_of_what_was_cleared(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ids = OnnxRuntimeEngine(tiny_build), prompt(64)
    prefill(engine, ids)
    engine.clear(0)
    counted = runs(engine, monkeypatch)
    prefill(engine, ids)
    assert len(counted) == 3
