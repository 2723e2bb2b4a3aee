"""Whether Dynamo and NIXL are here."""

from snapexport.errors import UserError
from snapexport.serving.dynamo.up import require_installed


def _is_installed() -> bool:
    try:
        require_installed()
    except UserError:
        return False
    return True


IS_INSTALLED = _is_installed()
WHY_NOT = "Dynamo or NIXL is not installed: none of their tests ran, `make test-dynamo`"
