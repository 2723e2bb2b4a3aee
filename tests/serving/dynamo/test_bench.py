"""`bench cluster` against real workers: what it counts as moved is the row of the build."""

import sys
from pathlib import Path

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.measure.bench.clients import Workload
from snapexport.measure.bench.deployment_load import measured, warm_up
from snapexport.measure.bench.deployments import Deployment, dynamo_versions, running

TOKENS = 700


def workload(clients: int) -> Workload:
    shape = clients, 2, TOKENS
    return Workload(np.random.default_rng(clients).integers(0, 200, shape).tolist(), max_tokens=12)


def test_cluster_counts_the_bytes_of_the_builds_rows(build: Path) -> None:
    opened = Build.open(build)
    of_all = cache_bytes(opened.manifest)
    with running(Deployment(1, 2), build, threads=2) as one:
        warm_up(one, workload(1))
        found = measured(one, workload(2))
        assert sum(name.startswith("decode-") for name in one.addresses) == 2
    assert (found["requests"], found["failed"]) == (4, 0)
    assert found["rows"] == 4
    assert found["row_bytes"] == of_all.decode / opened.manifest.batch
    tokens = opened.manifest.batch * opened.manifest.geometry.L_max
    assert found["full_cache_bytes"] == TOKENS * of_all.full / tokens
    assert found["tokens_per_second"] > 0 and found["cores"] > 0


def test_one_process_moves_nothing(build: Path) -> None:
    with running(Deployment(), build, threads=1) as one:
        found = measured(one, workload(2))
    assert (found["requests"], found["failed"]) == (4, 0)
    assert "row_bytes" not in found


def test_versions_of_dynamo_and_nixl_are_told() -> None:
    assert set(dynamo_versions(Path(sys.executable))) == {
        "ai-dynamo-runtime",
        "nixl",
        "onnxruntime",
    }
