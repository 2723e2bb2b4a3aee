"""The estimate of a bench's time and memory."""

from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.measure.bench import plan as module
from snapexport.measure.bench.plan import Plan, estimate
from snapexport.measure.options import BenchOptions
from tests.builds import build

CHUNK, STEP, COMPRESS = 2.0, 0.25, 0.5


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk takes 2 s, a decode step .25 s for each batch slot, a compress step .5 s."""
    monkeypatch.setattr(module, "chunk_seconds", lambda executor, length: CHUNK)
    monkeypatch.setattr(module, "step_seconds", lambda executor, active: STEP * active)
    monkeypatch.setattr(module, "seconds_of", lambda action: (action(), COMPRESS)[1])


def of(build: Build, **options: object) -> Plan:
    return Plan.of(build, BenchOptions(decode_steps=2, repeat=3, **options))  # type: ignore[arg-type]


def test_an_estimate_counts_every_visit_of_a_context(tiny_build: Build) -> None:
    """Three rounds; the longest context also warms up and is where memory is measured."""
    chunk = tiny_build.manifest.prefill_chunk
    plan = of(tiny_build, contexts=(chunk, chunk + 1), batches=(2, 1))
    decode = 2 * STEP * (2 + 1)
    compressions = 3 * 8 * COMPRESS
    short = 3 * (CHUNK + COMPRESS + decode) + compressions
    long = 5 * (2 * CHUNK + COMPRESS + decode) + compressions
    assert estimate(plan).seconds == pytest.approx(short + long)


def test_an_estimate_adds_the_baseline(tiny_build: Build) -> None:
    alone, both = (
        estimate(of(tiny_build, contexts=(16,), batches=(1,), baseline=baseline))
        for baseline in (False, True)
    )
    assert both.seconds > 1.5 * alone.seconds
    caches = cache_bytes(tiny_build.manifest)
    assert both.nbytes - alone.nbytes == caches.full + caches.prefill


def test_a_single_shot_runs_its_prompt_for_every_slot(checkpoint: Path, tmp_path: Path) -> None:
    sizes = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4}
    single_shot = build(checkpoint, tmp_path / "one.build", prefill_chunk=64, batch=2, **sizes)
    plan = of(single_shot, contexts=(16,), batches=(2,))
    assert estimate(plan).seconds == pytest.approx(5 * (2 * CHUNK + 2 * 2 * STEP))
