"""Finds Triton's server on this machine: NVIDIA's, from PATH, or the one in a PyPI wheel.

The wheel is nvidia-pytriton. It bundles the server with the Python backend alone, for x86-64 Linux
and without a GPU's needs, and a Python stub for each minor version of Python.
"""

import importlib.util
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from snapexport.errors import UserError

WHEEL = "nvidia-pytriton"
STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class Installation:
    """A server's program, its libraries and its backends. bundle: the wheel's folder, if any."""

    binary: Path
    bundle: Path | None = None

    @property
    def library_path(self) -> list[str]:
        """Folders of the shared libraries: Python's own, which the stub is linked to, and more."""
        own = [str(sysconfig.get_config_var("LIBDIR"))]
        bundled = self.bundle and self.bundle.parent / "nvidia_pytriton.libs"
        return [*own, str(bundled)] if bundled else own

    def backends(self, scratch: Path) -> Path | None:
        """The folder of the backends, put together in `scratch`; None: the server knows its own."""
        if self.bundle is None:
            return None
        python = scratch / "backends" / "python"
        python.mkdir(parents=True)
        for file in (self.bundle / "backends/python").iterdir():
            (python / file.name).symlink_to(file)
        if not (python / STUB).exists():
            (python / STUB).symlink_to(_stub(self.bundle))
        return python.parent


def find() -> Installation:
    """The server on PATH, else the wheel's. Raises UserError if neither is usable."""
    on_path = shutil.which("tritonserver")
    if on_path:
        return Installation(Path(on_path))
    spec = importlib.util.find_spec("pytriton")  # importing it would load far more
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "Triton Inference Server was not found",
            "run these tests by `make test-triton`, or put tritonserver on PATH",
        )
    bundle = Path(spec.submodule_search_locations[0]) / "tritonserver"
    return Installation(bundle / "bin/tritonserver", bundle)


def _stub(bundle: Path) -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = bundle / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        raise UserError(
            f"{WHEEL} has no stub for Python {version}", "use a Python that it has one for"
        )
    return stub
