"""Fills in the values of the repository's README.md and Dockerfile."""

import snapexport
from snapexport.contract.bytes import spelled
from snapexport.contract.manifest import Manifest
from snapexport.runtime.memory import cache_bytes
from snapexport.serving.triton.interface import Device
from snapexport.serving.triton.options import RepositoryOptions


def readme_values(options: RepositoryOptions, manifest: Manifest, device: Device) -> dict[str, str]:
    """The names in files/README.md."""
    cache = cache_bytes(manifest)
    return {
        "name": options.model_name,
        "unary": options.unary_name,
        "version": snapexport.__version__,
        "architecture": manifest.model.architecture,
        "target": manifest.target,
        "dtype": manifest.dtype,
        "longest_prompt": str(manifest.geometry.L_max),
        "slots": str(manifest.batch),
        "cache": spelled(cache.decode),
        "full_cache": spelled(cache.full),
        "gpus": "--gpus all " if device == "gpu" else "",
    }


def dockerfile_values(manifest: Manifest) -> dict[str, str]:
    """The names in files/Dockerfile. A plan runs on the TensorRT that built it."""
    versions = sorted({engine.version for engine in manifest.engines.values()})
    tensorrt = [f" \\\n    tensorrt=={version}" for version in versions[-1:]]
    return {
        "requirement": "snapexport[cpu,tensorrt]" if versions else "snapexport[cpu]",
        "more": "".join(tensorrt),
    }
