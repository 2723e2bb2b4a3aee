"""The real server, over a build of the bundled checkpoint.

These tests have an environment of their own, without torch: `make test-triton` sets it up, and
makes the build. Elsewhere only `offline/` is collected, and `test_installed.py` warns of it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.serving.triton.needed import IS_INSTALLED

if TYPE_CHECKING:
    from tests.serving.triton.client import Client
    from tests.serving.triton.server import Server

collect_ignore_glob = [] if IS_INSTALLED else ["test_[!i]*.py"]

NAME = "vault"
MAX_PENDING = 64


@pytest.fixture(scope="session")
def repository(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from snapexport.serving.options import RepositoryOptions
    from snapexport.serving.triton.repository import write_repository

    out = tmp_path_factory.mktemp("triton") / "repository"
    options = RepositoryOptions(build, out, name=NAME, threads=1, max_pending=MAX_PENDING)
    return write_repository(options)


@pytest.fixture(scope="session")
def server(repository: Path) -> "Iterator[Server]":
    from tests.serving.triton.server import Server

    with Server(repository) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: "Server") -> "Client":
    from tests.serving.triton.client import Client

    return Client(server, NAME)
