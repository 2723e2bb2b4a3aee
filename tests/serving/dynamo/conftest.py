"""Real Dynamo processes over a build of the bundled checkpoint, on loopback.

These tests have an environment of their own, without torch: `make test-dynamo` sets it up, and
makes the build. Elsewhere only `offline/` is collected, and `test_installed.py` warns of it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.serving.dynamo.needed import IS_INSTALLED

if TYPE_CHECKING:
    from tests.serving.dynamo.processes import Cluster

collect_ignore_glob = [] if IS_INSTALLED else ["test_[!i]*.py"]


@pytest.fixture(scope="module")
def cluster(build: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    """A frontend, a prefill and two decode workers."""
    from tests.serving.dynamo.processes import Cluster

    with Cluster(tmp_path_factory.mktemp("dynamo")) as running:
        running.serve(build, prefill=1, decode=2)
        yield running


@pytest.fixture
def alone(tmp_path: Path) -> "Iterator[Cluster]":
    """A cluster for one test, which starts its own workers."""
    from tests.serving.dynamo.processes import Cluster

    with Cluster(tmp_path) as running:
        yield running
