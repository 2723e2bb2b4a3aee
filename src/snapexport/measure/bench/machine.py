"""Describes the machine and the versions, which results need to be comparable."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import snapexport

_PACKAGES = "onnxruntime onnxruntime-gpu openvino numpy torch transformers onnx safetensors".split()


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def described() -> dict[str, Any]:
    """The processor, its cores, memory, system and load, and the versions of what runs on it."""
    versions = {"snapexport": snapexport.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "processor": _value("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": cores(),
        "memory_bytes": int(_value("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "system": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": versions,
    }


def _value(path: str, name: str) -> str:
    """The first line `name: value`; empty where there is none."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
