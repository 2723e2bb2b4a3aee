"""The whole road from a build's graphs to its engines."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import tensorrt as trt

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry, Plan
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import GraphName
from snapexport.engines.cancel import cancellable
from snapexport.engines.folder import EngineFolder, engine_name, timing_cache
from snapexport.engines.gpu import Gpu, present_gpu
from snapexport.engines.memory import estimate, free_memory, require_room
from snapexport.engines.options import EngineOptions
from snapexport.engines.progress import Progress
from snapexport.engines.record import left_to_build, plugin_file, record
from snapexport.engines.tensorrt_config import make_config
from snapexport.engines.tensorrt_log import Log
from snapexport.engines.tensorrt_monitor import Monitor
from snapexport.engines.tensorrt_network import load_plugins, read_network
from snapexport.engines.tensorrt_plan import check_plan, write_plan
from snapexport.engines.tensorrt_timing import attach_timing_cache, save_timing_cache

OLDEST = (10, 15)
"""The first whose parser has TensorScatter (NVIDIA/TensorRT's CHANGELOG.md), by which our graphs
write their caches."""


@dataclass(frozen=True)
class Job:
    """What is decided before the first graph is built. facts: the entry, without its plans."""

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
    """Build what is missing, graph by graph; the name of the engines. Raises UserError."""
    _require_version()
    gpu = present_gpu()
    job, graphs = Job.of(build, options, gpu), options.graphs_of(build.manifest)
    folder = job.folder
    with folder.ours():
        if not options.overwrite:
            graphs = left_to_build(folder, job.facts, graphs)
        needed = estimate(build.manifest, graphs, stripped=options.strip_plan)
        require_room(needed, free_memory(folder.directory, gpu.free), options.strip_plan)
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
        stripped=options.strip_plan,
        refit=options.refit,
        optimization_level=options.optimization_level,
        workspace=options.workspace,
        plugins=plugin_file(options.plugins, folder) if options.plugins else None,
        plans={},
    )


def _build_graphs(job: Job, graphs: tuple[GraphName, ...], log: Log, progress: Progress) -> None:
    for name in graphs:
        log.forget()
        plan = _build_graph(job, name, log, progress)
        record(job.folder, job.facts, job.options.plugins, name, plan)


def _build_graph(job: Job, name: GraphName, log: Log, progress: Progress) -> Plan:
    """Write one graph's plan under its partial name, and load it once. Ctrl-C ends it."""
    progress.stage(f"{name}: reading the graph")
    monitor = Monitor(lambda text: progress.stage(f"{name}: {text}"))
    return cancellable(lambda: _build_and_check(job, name, log, monitor), monitor.cancel)


def _build_and_check(job: Job, name: GraphName, log: Log, monitor: Monitor) -> Plan:
    partial, entry = job.folder.partial(name), job.build.manifest.graphs[name]
    partial.parent.mkdir(parents=True, exist_ok=True)
    size, digest = _write(job, name, log, monitor)
    memory = check_plan(
        log,
        partial,
        name,
        entry,
        version_compatible=job.options.version_compatible,
        plugins=job.options.plugins,
    )
    file = job.folder.in_build(job.folder.plan(name))
    return Plan(file=file, size=size, sha256=digest, device_memory=memory)


def _write(job: Job, name: GraphName, log: Log, monitor: Monitor) -> tuple[int, str]:
    """Apart, so that builder and network are gone before the plan is loaded."""
    builder = trt.Builder(log)
    if job.options.plugins:
        load_plugins(builder.get_plugin_registry(), log, job.options.plugins.resolve())
    config = make_config(builder, job.options, monitor)
    attach_timing_cache(config, job.timing_cache, ours=job.options.timing_cache is None)
    network = read_network(builder, log, job.build.graph(name), job.build.manifest.graphs[name])
    try:
        written = write_plan(builder, network, config, job.folder.partial(name))
    finally:
        save_timing_cache(config, job.timing_cache)
    if written is None:
        raise log.failure(f"TensorRT built no engine of {name}", "see docs/how-to/tensorrt.md")
    return written
