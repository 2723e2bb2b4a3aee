"""Skips a test with a warning in pytest's summary."""

import warnings
from typing import NoReturn

import pytest


def skip_loudly(reason: str) -> NoReturn:
    warnings.warn(f"SKIPPED: {reason}", stacklevel=2)
    pytest.skip(reason)
