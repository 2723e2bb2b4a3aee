"""Folders for onnxruntime-genai, and genai itself where `make test-genai` names its Python.

genai has an environment of its own, since few need it. Elsewhere the joined graph runs in plain
ONNX Runtime (`caller.py`), and tests of genai are left out.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from snapexport.contract.build_directory import Build
    from tests.genai.process import Genai

PYTHON = os.environ.get("SNAPEXPORT_GENAI_PYTHON")

collect_ignore_glob = [] if PYTHON else ["test_genai_*.py"]

SLOTS, CHUNK = 256, 128


@pytest.fixture(scope="session")
def vault_build(tmp_path_factory: pytest.TempPathFactory) -> "Build":
    """The bundled checkpoint, of 256 cache slots and blocks of 128 tokens."""
    from snapexport.vault import CHECKPOINT
    from tests.builds import build

    out = tmp_path_factory.mktemp("genai") / "vault.build"
    cache = {"L_sink": 4, "L_recent": 60, "K": 192}
    options = {"L_max": 2304, "prefill_chunk": CHUNK, "batch": 1, "extend": True}
    return build(CHECKPOINT, out, **cache, **options)


@pytest.fixture(scope="session")
def vault(vault_build: "Build", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of it."""
    from snapexport.genai.folder import GenaiOptions, write_folder

    out = tmp_path_factory.mktemp("genai") / "vault"
    write_folder(GenaiOptions(build=vault_build.directory, out=out))
    return out


@pytest.fixture
def genai() -> "Iterator[Callable[[Path], Genai]]":
    """Opens a folder in genai, in a process that ends with the test."""
    from tests.genai.process import Genai

    opened: list[Genai] = []

    def open_folder(folder: Path) -> Genai:
        opened.append(Genai(str(PYTHON), folder))
        return opened[-1]

    yield open_folder
    for one in opened:
        one.close()
