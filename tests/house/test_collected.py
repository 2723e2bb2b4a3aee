"""Every test is one that pytest runs."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_pytest_enters_every_folder_of_tests(pytestconfig: pytest.Config) -> None:
    skipped: list[str] = pytestconfig.getini("norecursedirs")
    names = {part for file in TESTS.rglob("test_*.py") for part in file.relative_to(TESTS).parts}
    assert "house" in names
    assert not [name for name in names if any(fnmatch(name, one) for one in skipped)]
