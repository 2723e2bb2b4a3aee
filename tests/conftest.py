"""A tiny checkpoint and a build of it, shared by the tests that only read them."""

from pathlib import Path

import pytest

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from tests.oracle import checkpoints


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(scope="session")
def tiny_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("builds") / "llama.build"
    return build(
        checkpoint, out, L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=24, baseline=True
    )
