"""Estimates the memory that building and running engines takes at least, by the manifest alone.

Counted: weights, inputs and outputs, and what TensorRT takes before it does anything. Not counted:
the activations and workspaces of single layers, which only the builder knows: --workspace bounds
them. So more may be needed. What is refused, `require_room` says.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract import names
from snapexport.contract.bytes import spelled, tensor_bytes
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest, TensorSpec
from snapexport.contract.tensors import in_place

HOST_COPIES = 2
"""Of the weights in host memory while an engine is built: the network's, and the engine's. NVIDIA's
developer guide ("How TensorRT Works", the build phase) says that there are at least two."""

LIBRARY_HOST = 2 * 2**30
LIBRARY_GPU = int(0.6 * 2**30)
"""TensorRT's libraries and CUDA's context before the first layer: 2,061 and 574 MiB in a log of
NVIDIA/TensorRT-LLM's issue 538 (TensorRT 9); rounded."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes. host and gpu: while it is built. engine: of the file, without its kernels.

    gpu_fixed: the part of `gpu` that no way of building spares, TensorRT's own and the weights.
    """

    host: int
    gpu: int
    gpu_fixed: int
    engine: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Graphs are built one after the other: the largest decides.

    running: bytes of GPU memory for their engines, each with its own copy of the weights, and for
    the caches; without the baseline's, which run instead of the others.
    """

    graphs: dict[GraphName, Needs]
    running: int

    @property
    def host(self) -> int:
        return max(needs.host for needs in self.graphs.values())

    @property
    def gpu(self) -> int:
        return max(needs.gpu for needs in self.graphs.values())

    @property
    def gpu_fixed(self) -> int:
        return max(needs.gpu_fixed for needs in self.graphs.values())

    @property
    def disk(self) -> int:
        return sum(needs.engine for needs in self.graphs.values())


def estimate(manifest: Manifest, graphs: Iterable[GraphName], *, stripped: bool) -> Estimate:
    """What building engines of `graphs` needs. stripped: the engines hold no weights."""
    found = {name: _needs(manifest, name, stripped) for name in graphs}
    return Estimate(found, LIBRARY_GPU + sum(_loaded(manifest, name) for name in found))


def _loaded(manifest: Manifest, name: GraphName) -> int:
    """What a graph adds to a running engine: its weights, and the caches that it doesn't borrow."""
    if name.startswith("baseline-"):
        return 0
    owns_caches = name in ("prefill", "decode")
    caches = _bytes(_caches(manifest.graphs[name])) if owns_caches else 0
    return _weights(manifest, name) + caches


def _needs(manifest: Manifest, name: GraphName, stripped: bool) -> Needs:
    weights, graph = _weights(manifest, name), manifest.graphs[name]
    fixed = LIBRARY_GPU + weights
    return Needs(
        host=LIBRARY_HOST + weights * (1 if stripped else HOST_COPIES),
        gpu=fixed + _bytes(graph.inputs) + _bytes(_fresh_outputs(name, graph)),
        gpu_fixed=fixed,
        engine=0 if stripped else weights,
    )


def _weights(manifest: Manifest, name: GraphName) -> int:
    """The compress step has none; all other graphs are the whole model."""
    return 0 if name == "compress" else sum(file.size for file in manifest.weights)


def _caches(graph: GraphEntry) -> list[TensorSpec]:
    return [spec for spec in graph.inputs if names.is_past(spec.name)]


def _fresh_outputs(name: GraphName, graph: GraphEntry) -> list[TensorSpec]:
    """Outputs with memory of their own: those that don't share an input's."""
    shared = in_place(name, graph)
    return [spec for spec in graph.outputs if spec.name not in shared]


def _bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(map(tensor_bytes, specs))


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes that are free. host: None where it is not known."""

    host: int | None
    gpu: int
    disk: int


def free_memory(directory: Path, gpu: int) -> Free:
    """What is free here, on the disk of `directory`, and on the GPU, which others ask."""
    return Free(host_available(), gpu, shutil.disk_usage(directory).free)


def host_available(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that a process could get: free or reclaimable memory and swap. None: not known."""
    try:
        lines = (line.split() for line in meminfo.read_text().splitlines())
        kibibytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
        return (kibibytes["MemAvailable"] + kibibytes["SwapFree"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def require_room(needed: Estimate, free: Free, stripped: bool) -> None:
    """Refuse what can't fit, before an hour is spent on it. Raises UserError.

    On the GPU only TensorRT and the weights are held against what is free: whether inputs and
    outputs all lie there while kernels are tried is the builder's own affair.
    """
    without_weights = "" if stripped else ", or pass --strip-weights: engines without weights"
    checks = (
        ("memory", needed.host, free.host, f"add memory or swap{without_weights}"),
        (
            "GPU memory",
            needed.gpu_fixed,
            free.gpu,
            "end what else runs on the GPU (`nvidia-smi` names it), use a larger one, or build "
            "the graphs again with a smaller --dtype",
        ),
        ("disk space", needed.disk, free.disk, f"make room{without_weights}"),
    )
    for what, least, left, hint in checks:
        if left is not None and least > left:
            raise UserError(
                f"building needs at least {spelled(least)} of {what}, and {spelled(left)} are free",
                hint,
            )
