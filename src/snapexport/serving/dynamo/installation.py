"""Finds out whether Dynamo and NIXL are installed, before anything is started."""

import importlib.util

from snapexport.errors import UserError

PACKAGES = {
    "dynamo._core": "ai-dynamo-runtime",
    "dynamo.common.backend": "ai-dynamo",
    "nixl": "nixl",
}
WHOLE = "pip install 'snapexport[cpu,dynamo]' && pip install --no-deps ai-dynamo nixl nixl-cu13"


def require_installed() -> None:
    """Raise UserError for a package that is missing."""
    for module, package in PACKAGES.items():
        if not _is_there(module):
            raise UserError(f"the package '{package}' is not installed", WHOLE)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
