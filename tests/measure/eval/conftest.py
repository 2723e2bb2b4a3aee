"""The shared builds as fixtures."""

import pytest

from snapexport.contract.build_directory import Build
from tests.measure.eval import builds


@pytest.fixture(scope="session")
def vault_build() -> Build:
    return builds.vault()


@pytest.fixture(scope="session")
def sliding_build() -> Build:
    return builds.sliding()
