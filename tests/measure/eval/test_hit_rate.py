"""The hit rate against transformers' own attention weights, and votes computed apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.measure.eval import hit_rate
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.hit_rate import THETA, HitRate
from snapexport.measure.eval.loaded_systems import loading
from snapexport.measure.eval.requests import Cell
from snapexport.measure.options import EvalOptions
from tests.measure.eval.builds import vault_grid
from tests.oracle import masked

STEPS = 9

Measured = tuple[float, Grid, list[HitRate]]
"""theta, and what was measured with it."""

ROUNDING = 1e-3
"""Attention so near to theta, as a share of it, may count or not."""


Attentions = list[list[NDArray[np.float32]]]
"""Attention of each decode step, by layer: [H, positions]."""


@dataclass
class Bounds:
    """Least and largest valid counts, int64 [layers, steps] each."""

    least: NDArray[np.int64]
    most: NDArray[np.int64]

    def hold(self, counts: NDArray[np.int64]) -> bool:
        return bool(np.all((self.least <= counts) & (counts <= self.most)))


def prompt_of(grid: Grid, cell: Cell) -> tuple[int, ...]:
    sample = grid.requests.sample(cell)
    return sample.context_ids + sample.question_ids


@torch.no_grad()
def attentions(model: Path, grid: Grid, cell: Cell) -> Attentions:
    """Attention of transformers' own greedy answer with its full cache."""
    loaded: Any = masked.load(model, "eager")
    tokenizer, eos = grid.requests.tokenizer, grid.build.manifest.model.eos_token_id
    out = loaded(torch.tensor([prompt_of(grid, cell)]), use_cache=True, logits_to_keep=1)
    seen: Attentions = []
    for _ in range(min(grid.requests.sample(cell).max_tokens, STEPS) - 1):
        token = int(out.logits[0, -1].argmax())
        if token in eos or "\n" in tokenizer.decode([token]):
            break
        out = loaded(
            torch.tensor([[token]]),
            past_key_values=out.past_key_values,
            use_cache=True,
            output_attentions=True,
        )
        seen.append([layer[0, :, 0].numpy() for layer in out.attentions])
    return seen


def expected(
    model: Path, grid: Grid, geometry: CacheGeometry, theta: float
) -> tuple[Bounds, Bounds]:
    """Hits, and all that was looked at."""
    shape = (2, geometry.slots.num_caches, STEPS)
    hits, seen = (Bounds(*np.zeros(shape, np.int64)) for _ in range(2))
    for cell in hit_rate._cells(grid):
        prompt = prompt_of(grid, cell)
        vote = masked.run(model, prompt, geometry, steps=0)
        assert vote.is_clear, "choose another seed"
        for layer, place in enumerate(geometry.layers):
            if not place.K:
                continue
            span = slice(place.L_sink, len(prompt) - place.L_recent)
            positions = np.arange(len(prompt))[span]
            kept = [np.isin(positions, row) for row in vote.topk_positions[layer]]
            kept = np.repeat(kept, 2, axis=0)  # two query heads a KV head
            for step, layers in enumerate(attentions(model, grid, cell)):
                for bound, shift in (("least", ROUNDING), ("most", -ROUNDING)):
                    looked = layers[layer][:, span] > theta * (1 + shift)
                    getattr(seen, bound)[layer, step] += looked.sum()
                    getattr(hits, bound)[layer, step] += (looked & kept).sum()
    return hits, seen


@pytest.fixture(scope="module", params=[THETA, THETA / 10, THETA / 30])
def measured(request: pytest.FixtureRequest, sliding_build: Build) -> Iterator[Measured]:
    grid = vault_grid(
        sliding_build,
        lengths=(120,),
        depths=(0.0, 0.5, 1.0),
        policies=("full", "snapstream:softmax=candidates", "streaming", "snapkv:pool=max"),
        budgets=(44,),
        hit_samples=2,
        seed=59,
    )
    with (
        pytest.MonkeyPatch.context() as patched,
        loading(sliding_build, EvalOptions(threads=1)) as loaded,
    ):
        patched.setattr(hit_rate, "THETA", request.param)
        yield request.param, grid, hit_rate.measure(grid, loaded, STEPS)


def test_hit_rate_equals_the_one_from_transformers_attention(
    sliding_build: Build, measured: Measured
) -> None:
    theta, grid, rates = measured
    systems = {one.name: one.geometry for one in grid.systems}
    assert [rate.system for rate in rates] == ["snapstream:softmax=candidates", "snapkv:pool=max"]
    for rate in rates:
        model = sliding_build.directory.parent / "model"
        hits, seen = expected(model, grid, systems[rate.system], theta)
        assert seen.hold(rate.seen), f"{rate.seen}\nnot\n{seen}"
        assert hits.hold(rate.hits), f"{rate.hits}\nnot\n{hits}"
        assert 0 < rate.hits.sum() < rate.seen.sum()


def test_hit_rate_skips_sliding_window_layers(measured: Measured) -> None:
    _, _, rates = measured
    for rate in rates:
        assert not rate.seen[[0, 2]].any() and rate.seen[1].any()
        first, second, third = rate.report()["by_layer"]
        assert first is third is None and 0 < second < 1


def test_hit_rate_report_is_hits_over_positions_looked_at() -> None:
    rate = HitRate("any", 8, np.array([[1, 0], [0, 0]]), np.array([[2, 0], [1, 3]]), prompts=1)
    report = rate.report()
    assert report["by_layer"] == [0.5, 0.0]
    assert report["by_step"] == [0.3333, 0.0]
    assert report["by_layer_and_step"] == [[0.5, None], [0.0, 0.0]]


def test_hit_rate_prompts_are_spread_over_the_depths(sliding_build: Build) -> None:
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    for count, expected_depths in ((0, []), (1, [0.5]), (2, [0.25, 0.75]), (9, list(depths))):
        grid = vault_grid(sliding_build, lengths=(90, 120), depths=depths, hit_samples=count)
        cells = hit_rate._cells(grid)
        assert [cell.depth for cell in cells] == expected_depths
        assert {cell.length for cell in cells} <= {120}


def test_hit_rate_is_empty_without_prompts_or_votes(sliding_build: Build) -> None:
    for choices in ({"hit_samples": 0}, {"hit_samples": 1, "policies": ("full", "streaming")}):
        grid = vault_grid(sliding_build, lengths=(120,), **choices)
        with loading(sliding_build, EvalOptions(threads=1)) as loaded:
            assert hit_rate.measure(grid, loaded) == []
