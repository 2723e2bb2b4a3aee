"""Which machine and which versions: a measurement without them can't be compared."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import snapexport

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "numpy")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def described() -> dict[str, Any]:
    """The processor, its cores, memory, system and load; and what runs on it."""
    return {
        "processor": next(_values("/proc/cpuinfo", "model name"), platform.machine()),
        "cores": cores(),
        "memory_bytes": int(next(_values("/proc/meminfo", "MemTotal")).split()[0]) * 1024,
        "system": platform.platform(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
        "versions": {
            "snapexport": snapexport.__version__,
            "python": platform.python_version(),
            **{name: found for name in _PACKAGES if (found := _version(name))},
        },
    }


def _values(path: str, name: str) -> Iterator[str]:
    """Of the lines `name: value`."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            yield value.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
