"""The estimate of an evaluation's time and memory."""

import pytest

from snapexport.contract.build_directory import Build
from snapexport.measure.eval import estimate as module
from snapexport.measure.eval.estimate import estimate
from tests.measure.eval.builds import vault_grid

CHUNK, STEP = 2.0, 0.25


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a chunk takes 2 s, and a decode step .25 s for each request in it."""
    monkeypatch.setattr(module, "chunk_seconds", lambda executor, length: CHUNK)
    monkeypatch.setattr(module, "step_seconds", lambda executor, active: STEP * active)


def test_an_estimate_counts_chunks_and_decoded_tokens(vault_build: Build, clock: None) -> None:
    """Prompts of 250 tokens are two chunks of 128; two windows run the last one again."""
    policies = ("full", "snapstream", "streaming")
    grid = vault_grid(vault_build, lengths=(250,), depths=(0.5,), policies=policies)
    sample = grid.requests.sample(grid.requests.cells()[0])
    tokens = sample.max_tokens + len(sample.question_ids)
    windows, modes = 2, 2
    wanted = CHUNK * (2 + windows * modes - 1) + STEP * tokens * len(policies) * modes
    assert estimate(grid).seconds == pytest.approx(wanted)


def test_systems_answer_one_prompt_after_the_other(
    sliding_build: Build, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a step has one request, although the build has two batch slots."""
    policies, modes = ("full", "streaming"), 2
    grid = vault_grid(sliding_build, lengths=(120,), depths=(0.5,), policies=policies)
    sample = grid.requests.sample(grid.requests.cells()[0])
    tokens = sample.max_tokens + len(sample.question_ids)
    whole = estimate(grid).seconds
    monkeypatch.setattr(module, "step_seconds", lambda executor, active: 0.0)
    assert whole - estimate(grid).seconds == pytest.approx(STEP * tokens * len(policies) * modes)


@pytest.mark.parametrize(
    ("plain", "policy", "more"),
    [
        # In each mode a chunk, and a decode step for each of 8 pseudo tokens but the first.
        ("snapstream", "snapstream:vote_queries=pseudo", CHUNK + 7 * STEP),
        # 250 tokens are three blocks of 128, each with the 8 tokens that vote.
        ("streaming", "snapstream:prefill=blocks", 3 * CHUNK),
    ],
)
def test_an_estimate_counts_what_a_policy_runs_by_itself(
    vault_build: Build, clock: None, plain: str, policy: str, more: float
) -> None:
    assert vault_build.manifest.geometry.vote.L_obs == 8
    less, all_of_it = (
        estimate(vault_grid(vault_build, lengths=(250,), depths=(0.5,), policies=("full", one)))
        for one in (plain, policy)
    )
    assert all_of_it.seconds - less.seconds == pytest.approx(2 * more)


def test_the_memory_of_an_estimate_is_that_of_weights_and_caches(vault_build: Build) -> None:
    both = vault_grid(vault_build, lengths=(250,), policies=("full", "snapstream"))
    one = vault_grid(vault_build, lengths=(250,), policies=("full",))
    model, manifest = vault_build.manifest.model, vault_build.manifest
    row = 4 * model.position_values
    slots = manifest.geometry.layers[0].cache_slots
    assert estimate(both).nbytes - estimate(one).nbytes == row * slots * manifest.batch
