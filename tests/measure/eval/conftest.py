"""The shared builds and documents as fixtures."""

from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from snapexport.vault import make_prompt
from tests.measure.eval import builds


@pytest.fixture(scope="session")
def vault_build() -> Build:
    return builds.vault()


@pytest.fixture(scope="session")
def sliding_build() -> Build:
    return builds.sliding()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two documents of the words that the bundled checkpoint's tokenizer knows."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for seed in range(2):
        (texts / f"{seed}.txt").write_text(make_prompt(seed, 900).text)
    (texts / "picture.png").write_bytes(b"\x89PNG")
    return texts
