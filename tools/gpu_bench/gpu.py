"""Which GPU the numbers are of."""

import importlib
from pathlib import Path
from typing import Any

from snapexport.runtime.cuda import Device
from snapexport.runtime.ort.cuda import require_cuda_provider

_DRIVER = Path("/proc/driver/nvidia/version")


def described() -> dict[str, Any]:
    """Its name, its driver's line, the CUDA that the driver and the runtime are of.

    Raises UserError where none can be used.
    """
    require_cuda_provider()
    device = Device()
    cuda = importlib.import_module("cuda.bindings.runtime")
    found = {
        "name": device.name,
        "compute_capability": device.compute_capability,
        # Not there under WSL.
        "driver": _DRIVER.read_text().splitlines()[0] if _DRIVER.is_file() else None,
        "driver_cuda": _version(*cuda.cudaDriverGetVersion()),
        "runtime_cuda": _version(*cuda.cudaRuntimeGetVersion()),
    }
    device.close()
    return found


def _version(status: Any, number: int) -> str | None:
    """13040 is 13.4; None where CUDA does not tell."""
    return None if int(status) else f"{number // 1000}.{number % 1000 // 10}"
