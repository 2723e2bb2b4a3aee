"""A short slice of the hostile requests, for every change: `make fuzz-http` sends far more."""

import asyncio
import statistics
from pathlib import Path

import pytest

from tests.fuzz_http import fuzz, stall

pytestmark = pytest.mark.slow

SEED = 1
QUICK = ("empty messages", "wrong roles", "prompts of token ids")
"""Bodies that stalled streams for seconds once."""


def test_hostile_requests_get_openais_answers_and_break_nothing(build: Path) -> None:
    report = fuzz.run(build, SEED, 150)
    assert report["wrong"] == []
    assert report["statuses"].keys() >= {200, 400, 415}


def test_large_bodies_stall_no_stream(build: Path) -> None:
    with fuzz.served(build) as serving:
        rows = asyncio.run(stall.measure(serving.port, 6_000_000, QUICK))
    undisturbed = rows["no body"]["gap_s"]
    gaps = (rows[name]["gap_s"] for name in QUICK)
    assert statistics.median(gaps) < max(1, 10 * undisturbed)
    assert [row["status"] for row in rows.values() if "status" in row] == [400] * len(QUICK)
