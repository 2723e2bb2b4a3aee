"""A contender that is no build of ours takes its turns in the same run."""

from functools import partial

import pytest

from snapexport.bench import memory
from snapexport.bench import run as running
from snapexport.bench.memory import Memory
from snapexport.bench.options import BenchOptions
from snapexport.bench.probes import Bandwidth, MatMul
from snapexport.bench.run import Run
from snapexport.contract.build_directory import Build
from tests.bench.fakes import Clock, FakeContender, entrant


def test_a_peer_is_measured_beside_the_build(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "measure", lambda *_: Memory(1, 2, 3, 4, 5))
    monkeypatch.setattr(running, "Bandwidth", partial(Bandwidth, nbytes=1 << 12))
    monkeypatch.setattr(running, "MatMul", partial(MatMul, rows=16))
    peer = FakeContender(Clock(), "peer", [])
    options = BenchOptions(contexts=(16,), decode_steps=2, repeat=1, threads=1)
    run = Run.of(tiny_build, options, [entrant("peer", batch=3, load=lambda: peer)])
    assert run.plan.batches == (3, 1)  # the build has 4 slots, the peer 3
    run.go(lambda: None)
    report = run.report()
    for rows in (report["prefill"], report["decode"], report["memory"]):
        assert {row["contender"] for row in rows} == {"snapstream", "peer"}
        assert all((row["floor"] is None) == (row["contender"] == "peer") for row in rows)
    assert [len(prompt) for prompt in peer.prompts] == [16] * 4
