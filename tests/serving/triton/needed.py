"""Whether the server and its client are here."""

import importlib.util
import shutil

_CLIENT = importlib.util.find_spec("tritonclient") is not None
_SERVER = importlib.util.find_spec("pytriton") is not None or shutil.which("tritonserver")

IS_INSTALLED = bool(_CLIENT and _SERVER)
WHY_NOT = "Triton's server or client is not installed: none of its tests ran, `make test-triton`"
