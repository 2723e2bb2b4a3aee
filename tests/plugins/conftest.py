"""The kernels' sources, compiled for the host over plugins/emulator: a C++ compiler is enough."""

import shutil
from pathlib import Path

import pytest

from snapexport.plugins import binding
from tests.plugins.compiled import Libraries
from tests.plugins.emulated import Emulated
from tests.plugins.loud import skip_loudly
from tests.store import Store


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    if not found:
        skip_loudly("no C++ compiler: no kernel was compiled or run")
    return found


@pytest.fixture(scope="session")
def libraries(store: Store | None, tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """In the store, where other workers, runs and clones find them too."""
    folder = tmp_path_factory.mktemp("libraries")
    return Libraries(folder, store or Store(folder / "store"))


@pytest.fixture(scope="session")
def emulated_library(compiler: str, libraries: Libraries) -> Path:
    return libraries.make("emulated", lambda out: binding.emulator_command(out, compiler))


@pytest.fixture(scope="session")
def emulated(emulated_library: Path) -> Emulated:
    return Emulated(emulated_library)
