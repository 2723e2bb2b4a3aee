"""Sparse prefill: chunks amid a long prompt see a part of its past; the last one sees all of it."""

from math import gcd
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapexport.errors import UserError
from snapexport.methods.sparse_prefill.spec import SparsePrefill
from tests.graphs.layered import MODELS, Layer, Layered, build
from tests.graphs.layered_answer import answer
from tests.graphs.layered_runs import Rows, Running
from tests.graphs.sparse_answer import sparse_answer
from tests.graphs.test_uneven_layers import EXACT, L_MAX, TARGETS, error, geometry_of

torch.set_num_threads(1)

CHUNK, BUDGET, STEPS = 8, 32, 3
WINDOWS = {
    "windows around the budget": Layered(
        (*(Layer(window=size) for size in (BUDGET, BUDGET + 1, BUDGET + 2, 1)), Layer())
    ),
    "windows alone": Layered((Layer(window=12), Layer(window=12, sinks=True))),
}
LENGTHS = 64, 59, 49, 40, 33, 5
"""More chunks than the budget has, a last one that overlaps, one that is aligned, and none sparse.
"""


def compare(running: Running, model: Layered, length: int, *, budget: int, chunk: int) -> None:
    """Compare with masks, on a prompt whose choices are no near ties."""
    geometry, block = running.build.manifest.geometry, gcd(chunk, 64)
    sizes = {"budget": budget, "chunk": chunk, "block": block}
    for seed in range(50):
        prompt = tuple(np.random.default_rng([length, seed]).integers(0, 97, length).tolist())
        want, doubt = sparse_answer(model, geometry, prompt, STEPS, **sizes)
        if min(want.gap, doubt) > 1e-4:
            break
    logits, row, kept = running.prefill(prompt)
    assert error(logits, want.logits[0]) < EXACT, length
    for name, positions in kept.items():
        np.testing.assert_array_equal(positions, want.kept[int(name.split(".")[1])])
    held = Rows.of(running, [(length, row)] * 2)
    for step, token in enumerate(want.tokens[:-1]):
        assert error(held.step([token] * 2, step)[0], want.logits[step + 1]) < EXACT, step


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*MODELS, *WINDOWS])
def test_chunks_see_the_blocks_of_their_choice(name: str, target: str, tmp_path: Path) -> None:
    model = (MODELS | WINDOWS)[name]
    sizes = {"policy": "snapstream"} if name == "windows alone" else {}
    made = build(
        *(model, geometry_of(model, **sizes), tmp_path / "b"),
        **{"target": target, "chunk": CHUNK, "prefill_budget": BUDGET},
    )
    running = Running(made)
    for length in LENGTHS:
        compare(running, model, length, budget=BUDGET, chunk=CHUNK)


@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_any_chunks_and_budgets(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    chunk = data.draw(st.sampled_from([4, 6, 8, 12]))
    block = gcd(chunk, 64)
    last = (L_MAX - 1) // chunk * chunk - chunk
    budget = block * data.draw(st.integers(3, last // block - 1))
    model = Layered((Layer(), Layer(heads=6, kv_heads=1)), seed=data.draw(st.integers(0, 9)))
    made = build(
        *(model, geometry_of(model), tmp_path_factory.mktemp("sparse") / "b"),
        **{"chunk": chunk, "prefill_budget": budget},
    )
    length = data.draw(st.integers(1, L_MAX))
    compare(Running(made), model, length, budget=budget, chunk=chunk)


@pytest.mark.parametrize("chunk", [5, 16, 96, 128])
def test_largest_budget_leaves_a_sparse_chunk(chunk: int) -> None:
    for L_max in range(6 * chunk, 6 * chunk + 70):
        last = max(start for start in range(0, L_max, chunk) if start + chunk < L_max)
        block = gcd(chunk, 64)
        SparsePrefill(last - block, chunk).require_room(L_max)
        with pytest.raises(UserError, match=f"to {last - block}"):
            SparsePrefill(last, chunk).require_room(L_max)


def test_sparse_answers_are_others(tmp_path: Path) -> None:
    """The comparison above would see it if nothing were left out."""
    model, prompt = MODELS["mimo"], list(range(64))
    made = build(model, geometry_of(model), tmp_path / "b", chunk=CHUNK, prefill_budget=BUDGET)
    dense = answer(model, made.manifest.geometry, prompt, 0)
    assert error(Running(made).prefill(prompt)[0], dense.logits[0]) > 30 * EXACT
