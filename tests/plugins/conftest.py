"""The kernels' sources, compiled for the host over plugins/emulator: a C++ compiler is enough."""

import shutil
from pathlib import Path

import pytest

from snapexport.plugins import compiling
from tests.plugins.emulated import Emulated
from tests.plugins.loud import skip_loudly


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    if not found:
        skip_loudly("no C++ compiler: no kernel was compiled or run")
    return found


@pytest.fixture(scope="session")
def emulated_library(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = Path(tmp_path_factory.mktemp("kernels")) / "emulated.so"
    compiling.build(compiling.emulator_command(library, compiler))
    return library


@pytest.fixture(scope="session")
def emulated(emulated_library: Path) -> Emulated:
    return Emulated(emulated_library)
