"""Warns if the other tests of this folder did not run."""

from snapexport.serving.dynamo.up import require_installed
from tests.plugins.loud import skip_loudly
from tests.serving.dynamo.needed import IS_INSTALLED, WHY_NOT


def test_dynamo_and_nixl_are_installed() -> None:
    if not IS_INSTALLED:
        skip_loudly(WHY_NOT)
    require_installed()
