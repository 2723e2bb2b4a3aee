"""Finds Triton's server: NVIDIA's, from PATH, or the one in the wheel nvidia-pytriton.

The wheel bundles the server with the Python backend alone, and a Python stub for each minor version
of Python.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

STUB = "triton_python_backend_stub"


def find() -> tuple[Path, Path | None]:
    """The server's program, and the wheel's folder if it is the wheel's."""
    if on_path := shutil.which("tritonserver"):
        return Path(on_path), None
    spec = importlib.util.find_spec("pytriton")  # importing it would load far more
    assert spec and spec.submodule_search_locations, "run these tests by `make test-triton`"
    bundle = Path(spec.submodule_search_locations[0]) / "tritonserver"
    return bundle / "bin/tritonserver", bundle


def python_backend(bundle: Path, scratch: Path) -> Path:
    """The folder of the wheel's backends, put together in `scratch`."""
    python = scratch / "backends" / "python"
    python.mkdir(parents=True)
    for file in (bundle / "backends/python").iterdir():
        (python / file.name).symlink_to(file)
    if not (python / STUB).exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        (python / STUB).symlink_to(bundle / "python_backend_stubs" / version / STUB)
    return python.parent


def environment(bundle: Path | None) -> Mapping[str, str]:
    """Ours, with this interpreter first: the Python backend takes the python3 on PATH."""
    # Python's own would mislead the embedded interpreter.
    ours = ("PYTHONHOME", "PYTHONPATH")
    outside = {name: value for name, value in os.environ.items() if name not in ours}
    libraries = [str(sysconfig.get_config_var("LIBDIR"))]  # the stub is linked to Python's own
    libraries += [str(bundle.parent / "nvidia_pytriton.libs")] if bundle else []
    return outside | {
        "PATH": f"{Path(sys.prefix) / 'bin'}:{outside.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": ":".join([*libraries, outside.get("LD_LIBRARY_PATH", "")]).strip(":"),
    }
