"""Estimates from the manifest the least memory that building and running engines takes.

Counted: weights, inputs and outputs, the memory of the libraries, and the largest layers' scratch
memory while engines run. Not counted: what layers take while TensorRT tries kernels. Only its
builder knows that, and --workspace bounds it. Builds may need more than estimated.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.build_directory import in_place, weight_inputs
from snapexport.contract.graph_kinds import GraphOf, graph_of
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest, TensorSpec
from snapexport.contract.memory import (
    FACTORS,
    GPU_CONTEXT,
    caches_of,
    scratch_bytes,
    spelled,
    total_bytes,
    weights_bytes,
)
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that one graph needs. host, gpu: during the build. engine: its file, without kernels.

    gpu_fixed: the part of `gpu` for TensorRT's libraries and the weights, which every build needs.
    scratch: on the GPU, while the engine runs.
    """

    host: int
    gpu: int
    gpu_fixed: int
    engine: int
    scratch: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes for all graphs. They are built one after the other, so host and gpu are maxima.

    running: GPU memory of the weights, of the caches, and of the largest scratch memory, which the
    engines share. Each engine holds its own weights, unless they are inputs. The baseline's engines
    are left out: they run instead of the others.
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
    """Memory needed to build engines of `graphs`. stripped: the engines hold no weights."""
    found = {name: _needs(manifest, name, stripped) for name in graphs}
    ours = {name: needs for name, needs in found.items() if not is_baseline(name)}
    shared = max((needs.scratch for needs in ours.values()), default=0)
    loaded = sum(_loaded_bytes(manifest, name) for name in ours)
    return Estimate(found, GPU_CONTEXT + _shared_weights(manifest) + shared + loaded)


def _shared_weights(manifest: Manifest) -> int:
    """Bytes of the weights that graphs take as inputs, each counted once."""
    inputs = (spec for name in manifest.graphs for spec in weight_inputs(manifest, name))
    return total_bytes({spec.name: spec for spec in inputs}.values())


def _loaded_bytes(manifest: Manifest, name: GraphName) -> int:
    """Bytes of GPU memory of a loaded engine: its weights, and the caches that it owns."""
    graph = graph_of(name)
    owns_caches = graph.kind.owns_caches and graph == GraphOf(graph.kind)
    caches = total_bytes(caches_of(manifest, name)) if owns_caches else 0
    return _weights(manifest, name) + caches


def _needs(manifest: Manifest, name: GraphName, stripped: bool) -> Needs:
    weights, graph = _weights(manifest, name), manifest.graphs[name]
    factors, library = FACTORS[manifest.target], capabilities(manifest.target).library
    copies = 1.0 if stripped else factors.build_copies
    fixed = 0 if library and library.capabilities else GPU_CONTEXT + weights
    tensors = total_bytes([*graph.inputs, *_fresh_outputs(name, graph)])
    return Needs(
        host=factors.build_host + int(weights * copies),
        gpu=fixed and fixed + tensors,
        gpu_fixed=fixed,
        engine=0 if stripped else weights,
        scratch=_scratch(manifest, name),
    )


def _scratch(manifest: Manifest, name: GraphName) -> int:
    """Bytes of one layer's scratch memory: as the builder of an engine reported, else by shapes."""
    built = [entry.graphs[name] for entry in manifest.engines.values() if name in entry.graphs]
    if built:
        return max(engine.device_memory for engine in built)
    return scratch_bytes(manifest, name)


def _weights(manifest: Manifest, name: GraphName) -> int:
    """Bytes of the weights in a graph's engine: none in compress and vote, else the model's.

    Vectors, which stay in the graph when weights are shared, are not counted.
    """
    if not graph_of(name).kind.has_weights or manifest.graph_options.share_weights:
        return 0
    return weights_bytes(manifest)


def is_baseline(name: GraphName) -> bool:
    """Whether a graph runs the full cache."""
    return graph_of(name).is_baseline


def _fresh_outputs(name: GraphName, graph: GraphEntry) -> list[TensorSpec]:
    """Outputs that don't share an input's buffer."""
    shared = in_place(name, graph)
    return [spec for spec in graph.outputs if spec.name not in shared]


@dataclass(frozen=True, slots=True)
class Free:
    """Free bytes. host: None if unknown. gpu: None if the build uses none."""

    host: int | None
    gpu: int | None
    disk: int


def free_memory(directory: Path, gpu: int | None) -> Free:
    """Free bytes on the host, on the disk of `directory`, and `gpu` on the GPU if one is used."""
    return Free(host_available(), gpu, shutil.disk_usage(directory).free)


def host_available(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Free or reclaimable memory and swap, bytes; None if unknown."""
    try:
        lines = (line.split() for line in meminfo.read_text().splitlines())
        kibibytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
        return (kibibytes["MemAvailable"] + kibibytes["SwapFree"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def require_room(needed: Estimate, free: Free, stripped: bool) -> None:
    """Raise UserError for a build that cannot fit, since a build may take an hour.

    On the GPU only `gpu_fixed` is compared: the builder decides whether inputs and outputs are all
    on the GPU while it tries kernels.
    """
    without_weights = "" if stripped else ", or pass --strip-weights: engines without weights"
    checks = (
        ("memory", needed.host, free.host, f"add memory or swap{without_weights}"),
        (
            "GPU memory",
            needed.gpu_fixed,
            free.gpu,
            "end other processes on the GPU (`nvidia-smi` lists them), use a larger GPU, or build "
            "the graphs again with a smaller --dtype",
        ),
        ("disk space", needed.disk, free.disk, f"make room{without_weights}"),
    )
    for what, least, left, hint in checks:
        if left is not None and least > left:
            raise UserError(
                f"building needs at least {spelled(least)} of {what}; {spelled(left)} are free",
                hint,
            )
