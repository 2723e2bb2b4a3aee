"""Warns if the other tests of this folder did not run."""

from tests.plugins.loud import skip_loudly
from tests.serving.triton.installation import find
from tests.serving.triton.needed import IS_INSTALLED, WHY_NOT


def test_triton_server_is_installed() -> None:
    if not IS_INSTALLED:
        skip_loudly(WHY_NOT)
    binary, _ = find()
    assert binary.is_file()
