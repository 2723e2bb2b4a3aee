"""A build of the bundled checkpoint, and the same build alone in this process."""

import os
from pathlib import Path

import pytest

from snapexport import LLM
from snapexport.vault import CHECKPOINT


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 batch slots, prompts of up to 2,064 tokens in chunks of 256, 128 cache slots."""
    if given := os.environ.get("SNAPEXPORT_TEST_BUILD"):
        return Path(given)
    from tests.builds import build as make_build

    out = tmp_path_factory.mktemp("serving") / "vault.build"
    built = make_build(CHECKPOINT, out, L_max=2064, kv_budget=128, batch=8, prefill_chunk=256)
    return built.directory


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def llm(build: Path) -> LLM:
    return LLM(build, threads=1)
