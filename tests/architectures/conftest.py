"""These tests are the comparison with transformers: their builds don't make it once more."""

from collections.abc import Iterator

import pytest

from snapexport.builder import selfcheck


@pytest.fixture(autouse=True, scope="module")
def _compared_by_the_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfcheck, "verify_if_due", lambda *_: None)
        yield
