"""An executor runs builds whose layers have heads, or caches, of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from snapexport.builder import BuildOptions
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.pieces import pieces
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.engine.rows import Row
from tests.graphs.layered import MODELS, Layered, build
from tests.graphs.layered_answer import Answer, answer, clear_prompt

torch.set_num_threads(1)

STEPS, TOKENS = 24, 4
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def geometry_of(model: Layered, **flags: Any) -> CacheGeometry:
    sizes = {"kv_budget": 24, "L_sink": 2, "L_recent": 12, "L_obs": 4, "pool_kernel": 3}
    given = {"model": "", "out": Path(), "L_max": 64}
    return BuildOptions.of(**given | sizes | flags).geometry(model.facts)


@contextmanager
def opened(
    model: Layered, geometry: CacheGeometry, out: Path, prefill: Any = "chunks", **options: Any
) -> Iterator[Executor]:
    executor = open_executor(build(model, geometry, out, **options), threads=1, prefill=prefill)
    assert isinstance(executor, Executor)
    yield executor
    executor.close()


def require_near(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, atol=3e-4 * want.std())


def step(executor: Executor, slot: int, length: int, done: int, tokens: Sequence[int]) -> Any:
    """Predictions after tokens of one batch slot, the `done`-th after its prompt first."""
    rows = np.zeros((3, slot + 1), np.int64)
    ids = np.zeros((slot + 1, len(tokens)), np.int64)
    ids[slot], rows[1, slot], rows[2, slot] = tokens, length + done, length
    fed = ids if len(tokens) > 1 else ids[:, 0]
    return executor.decode(fed, rows[1], rows[2]).of_tokens(slot)


def require_goes_on(executor: Executor, slot: int, length: int, want: Answer) -> None:
    for done in range(STEPS):
        (prediction,) = step(executor, slot, length, done, [want.tokens[done]])
        require_near(prediction.logits, want.logits[done + 1])


@every_model
def test_prefill_decode_and_kept_positions(model: Layered, tmp_path: Path) -> None:
    geometry, length = geometry_of(model), 41
    prompt = clear_prompt(model, geometry, length)
    want = answer(model, geometry, prompt, STEPS)
    with opened(model, geometry, tmp_path / "b", batches=[1]) as executor:
        executor.prefill_prompt(0, prompt[:20])
        require_near(executor.prefill_prompt(1, prompt).logits, want.logits[0])
        for got, cache in zip(executor.topk_positions() or (), geometry.slots.caches, strict=True):
            np.testing.assert_array_equal(got, want.kept[cache.cache])
        executor.move(1, 0)
        require_goes_on(executor, 0, length, want)


@every_model
def test_a_prompt_that_outgrows_a_smaller_cache(model: Layered, tmp_path: Path) -> None:
    geometry, length = geometry_of(model), 41
    prompt = clear_prompt(model, geometry, length)
    want = answer(model, geometry, prompt, STEPS)
    options: dict[str, Any] = {"target": "portable", "capacities": [20]}
    with opened(model, geometry, tmp_path / "b", **options) as executor:
        require_near(executor.prefill_prompt(0, prompt).logits, want.logits[0])
        require_goes_on(executor, 0, length, want)


@every_model
def test_a_full_cache(model: Layered, tmp_path: Path) -> None:
    geometry, length = geometry_of(model).as_full(), 64 - STEPS
    prompt = clear_prompt(model, geometry, length)
    want = answer(model, geometry, prompt, STEPS)
    with opened(model, geometry, tmp_path / "b") as executor:
        require_near(executor.prefill_prompt(1, prompt).logits, want.logits[0])
        executor.move(1, 0)
        require_goes_on(executor, 0, length, want)


@every_model
def test_drafts_that_are_right_up_to_some_token(model: Layered, tmp_path: Path) -> None:
    geometry, length, done = geometry_of(model, tokens_per_step=TOKENS), 41, 0
    prompt = clear_prompt(model, geometry, length)
    want = answer(model, geometry, prompt, STEPS)
    with opened(model, geometry, tmp_path / "b") as executor:
        executor.prefill_prompt(0, prompt)
        while done + TOKENS <= STEPS:
            right = 1 + done % TOKENS
            tokens = [*want.tokens[done : done + right], *[5] * TOKENS][:TOKENS]
            predictions = step(executor, 0, length, done, tokens)
            for token in range(right):
                require_near(predictions[token].logits, want.logits[done + token + 1])
            executor.accept(0, right)
            done += right


@every_model
def test_a_row_that_is_handed_over(model: Layered, tmp_path: Path) -> None:
    geometry, length = geometry_of(model), 41
    prompt = clear_prompt(model, geometry, length)
    want = answer(model, geometry, prompt, STEPS)
    with opened(model, geometry, tmp_path / "b") as one:
        one.prefill_prompt(1, prompt)
        row: Row = one.rows.copy_out(1, {})
        one.rows.copy_in(0, row)
        require_goes_on(one, 0, length, want)


@every_model
def test_a_parked_row_that_a_turn_follows(model: Layered, tmp_path: Path) -> None:
    geometry, length = geometry_of(model, kv_budget=None, K=50), 41
    prompt = clear_prompt(model, geometry, length)
    want = answer(model, geometry, prompt, STEPS)
    with opened(model, geometry, tmp_path / "b", prefill="both", extend=True) as executor:
        parking, how = executor.parking, executor.limits.prefill
        assert parking
        (first,) = pieces(16, 0, how, onto_row=False)
        executor.take(0, prompt[:16], first)
        parking.resume(1, parking.park(0, first))
        for piece in pieces(length, 16, how, onto_row=True):
            prediction = executor.take(1, prompt, piece)
        require_near(prediction.logits, want.logits[0])
        require_goes_on(executor, 1, length, want)
