"""Builds the engines of a build, graph by graph: parse, build, check, record."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import tensorrt as trt

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry, GraphEngine
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import GraphName
from snapexport.engines.folder import EngineFolder, engine_name, timing_cache
from snapexport.engines.gpu import Gpu, present_gpu
from snapexport.engines.memory import estimate, free_memory, require_room
from snapexport.engines.options import EngineOptions
from snapexport.engines.progress import Progress, cancellable
from snapexport.engines.record import left_to_build, plugin_file, record
from snapexport.engines.tensorrt_callbacks import Log, Monitor
from snapexport.engines.tensorrt_config import attach_timing_cache, make_config, save_timing_cache
from snapexport.engines.tensorrt_engine import check_engine, write_engine
from snapexport.engines.tensorrt_network import load_plugins, read_network

OLDEST = (10, 15)
"""The first version whose parser has TensorScatter, with which our graphs write caches. Source:
CHANGELOG.md of NVIDIA/TensorRT."""


@dataclass(frozen=True)
class Job:
    """Settings shared by all graphs of a build. facts: the manifest's entry, without engines."""

    build: Build
    options: EngineOptions
    folder: EngineFolder
    timing_cache: Path
    facts: EngineEntry

    @classmethod
    def of(cls, build: Build, options: EngineOptions, gpu: Gpu) -> "Job":
        folder = EngineFolder(build.directory, engine_name(gpu, options))
        cache = options.timing_cache or timing_cache(build.directory, gpu)
        return cls(build, options, folder, cache, _facts(gpu, options, folder))


def build_all(build: Build, options: EngineOptions, progress: Progress) -> str:
    """Build missing engines, graph by graph. Returns the engines' name. Raises UserError."""
    _require_version()
    gpu = present_gpu()
    job, graphs = Job.of(build, options, gpu), options.graphs_of(build.manifest)
    folder = job.folder
    with folder.ours():
        if not options.overwrite:
            graphs = left_to_build(folder, job.facts, graphs)
        needed = estimate(build.manifest, graphs, stripped=options.strip_weights)
        require_room(needed, free_memory(folder.directory, gpu.free), options.strip_weights)
        with closing(Log(folder.log)) as log:
            _build_graphs(job, graphs, log, progress)
    return folder.name


def _require_version() -> None:
    version = tuple(int(part) for part in trt.__version__.split(".")[:2])
    if version < OLDEST:
        raise UserError(
            f"TensorRT {trt.__version__} is too old: its parser has no TensorScatter",
            "pip install 'tensorrt>=10.15,<12'",
        )


def _facts(gpu: Gpu, options: EngineOptions, folder: EngineFolder) -> EngineEntry:
    return EngineEntry(
        tensorrt=trt.__version__,
        compute_capability=gpu.compute_capability,
        gpu=gpu.name,
        hardware_compatibility=options.hardware,
        version_compatible=options.version_compatible,
        stripped=options.strip_weights,
        refit=options.refit,
        optimization_level=options.optimization_level,
        workspace=options.workspace,
        plugins=plugin_file(options.plugins, folder) if options.plugins else None,
        graphs={},
    )


def _build_graphs(job: Job, graphs: tuple[GraphName, ...], log: Log, progress: Progress) -> None:
    for name in graphs:
        log.forget()
        engine = _build_graph(job, name, log, progress)
        record(job.folder, job.facts, job.options.plugins, name, engine)


def _build_graph(job: Job, name: GraphName, log: Log, progress: Progress) -> GraphEngine:
    """Write one graph's engine under its partial name, and load it once. Ctrl-C stops the build."""
    progress.stage(f"{name}: reading the graph")
    monitor = Monitor(lambda text: progress.stage(f"{name}: {text}"))
    return cancellable(lambda: _build_and_check(job, name, log, monitor), monitor.cancel)


def _build_and_check(job: Job, name: GraphName, log: Log, monitor: Monitor) -> GraphEngine:
    partial, entry = job.folder.partial(name), job.build.manifest.graphs[name]
    partial.parent.mkdir(parents=True, exist_ok=True)
    size, digest = _write(job, name, log, monitor)
    memory = check_engine(
        log,
        partial,
        name,
        entry,
        version_compatible=job.options.version_compatible,
        plugins=job.options.plugins,
    )
    file = job.folder.in_build(job.folder.engine(name))
    return GraphEngine(file=file, size=size, sha256=digest, device_memory=memory)


def _write(job: Job, name: GraphName, log: Log, monitor: Monitor) -> tuple[int, str]:
    """Build an engine; its size and SHA-256. Frees builder and network before the engine loads."""
    builder = trt.Builder(log)
    if job.options.plugins:
        load_plugins(builder.get_plugin_registry(), log, job.options.plugins.resolve())
    config = make_config(builder, job.options, monitor)
    attach_timing_cache(config, job.timing_cache, ours=job.options.timing_cache is None)
    network = read_network(builder, log, job.build.graph(name), job.build.manifest.graphs[name])
    try:
        written = write_engine(builder, network, config, job.folder.partial(name))
    finally:
        save_timing_cache(config, job.timing_cache)
    if written is None:
        raise log.failure(f"TensorRT built no engine of {name}", "see docs/how-to/tensorrt.md")
    return written
