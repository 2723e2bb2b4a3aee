"""Builds the engines of a build, graph by graph: parse, build, check, record.

An engine that was built ahead of time is not loaded: that takes a GPU and its driver.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from snapexport.builder.engines.folder import (
    EngineFolder,
    Gpu,
    ahead_of_time_name,
    engine_name,
    left_to_build,
    plugin_file,
    present_gpu,
    record,
    timing_cache,
)
from snapexport.builder.engines.memory import estimate, free_memory, require_room
from snapexport.builder.engines.options import EngineOptions
from snapexport.builder.engines.tensorrt_callbacks import Log, Monitor
from snapexport.builder.engines.tensorrt_config import (
    attach_timing_cache,
    known_capabilities,
    make_config,
    save_timing_cache,
    set_compute_capabilities,
    set_hardware,
)
from snapexport.builder.engines.tensorrt_engine import (
    check_engine,
    load_plugins,
    read_network,
    write_engine,
)
from snapexport.builder.progress import Progress, cancellable
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry, GraphEngine
from snapexport.contract.manifest import GraphName
from snapexport.contract.targets import EngineLibrary
from snapexport.contract.tensorrt_bindings import trt, version
from snapexport.errors import UserError


@dataclass(frozen=True)
class Job:
    """Settings shared by all graphs of a build.

    gpu: the one to build on; None: ahead of time. timing_cache: None: none is kept. facts: the
    manifest's entry, without engines.
    """

    build: Build
    library: EngineLibrary
    options: EngineOptions
    gpu: Gpu | None
    folder: EngineFolder
    timing_cache: Path | None
    facts: EngineEntry

    @classmethod
    def on_gpu(cls, build: Build, library: EngineLibrary, options: EngineOptions) -> "Job":
        """Engines for the present GPU. Raises UserError where there is none."""
        gpu = present_gpu()
        folder = EngineFolder(build.directory, engine_name(gpu, options))
        cache = options.timing_cache or timing_cache(build.directory, gpu)
        facts = _facts(options, folder, [gpu.compute_capability], gpu.name)
        return cls(build, library, options, gpu, folder, cache, facts)

    @classmethod
    def ahead_of_time(cls, build: Build, library: EngineLibrary, options: EngineOptions) -> "Job":
        """Engines for GPUs by their compute capabilities, built on any machine."""
        what, having = _instructions(build, library)
        known = [one for one in known_capabilities(library) if one in having]
        wanted = list(options.compute_capabilities or known)
        _require_instructions(what, having, wanted)
        if missing := [capability for capability in wanted if capability not in known]:
            raise UserError(
                f"{library.title} {version()} has no compute capability {', '.join(missing)}",
                f"choose from {', '.join(known)}, or install a newer version",
            )
        folder = EngineFolder(build.directory, ahead_of_time_name(wanted))
        facts = _facts(options, folder, wanted, None)
        return cls(build, library, options, None, folder, None, facts)


def build_all(
    build: Build, library: EngineLibrary, options: EngineOptions, progress: Progress
) -> str:
    """Build missing engines, graph by graph. Returns the engines' name. Raises UserError."""
    _require_version(library)
    make = Job.ahead_of_time if library.capabilities else Job.on_gpu
    job, graphs = make(build, library, options), options.graphs_of(build.manifest)
    folder = job.folder
    with folder.ours():
        if not options.overwrite:
            graphs = left_to_build(folder, job.facts, graphs)
        needed = estimate(build.manifest, graphs, stripped=options.strip_weights)
        free = free_memory(folder.directory, job.gpu.free if job.gpu else None)
        require_room(needed, free, options.strip_weights)
        with closing(Log(folder.log)) as log:
            _build_graphs(job, graphs, log, progress)
    return folder.name


def _instructions(build: Build, library: EngineLibrary) -> tuple[str, tuple[str, ...]]:
    """A type of the weights that not all GPUs have, and those that have it."""
    if build.manifest.quantization == "fp8":
        return "fp8", library.fp8_capabilities
    if build.manifest.holds_fp4:
        return "NVFP4", library.fp4_capabilities
    return "", library.capabilities


def _require_instructions(what: str, having: tuple[str, ...], wanted: list[str]) -> None:
    """Raise UserError for GPUs that have none. Unknown ones are refused later."""
    without = [one for one in wanted if one not in having]
    if what and without:
        raise UserError(
            f"the build has {what} weights, which GPUs of compute capability {', '.join(without)} "
            "have no instructions for",
            f"choose from {', '.join(having)}, or build it again with --weights dequantize",
        )


def _require_version(library: EngineLibrary) -> None:
    if tuple(int(part) for part in version().split(".")[:2]) < library.oldest:
        (oldest, minor), (newest, _) = library.oldest, library.newest
        raise UserError(
            f"{library.title} {version()} is too old: its parser has no TensorScatter",
            f"pip install 'snapexport[{library.extra}]' brings {oldest}.{minor} or newer, below "
            f"{newest}",
        )


def _facts(
    options: EngineOptions,
    folder: EngineFolder,
    compute_capabilities: list[str],
    gpu: str | None,
) -> EngineEntry:
    return EngineEntry(
        version=version(),
        compute_capabilities=compute_capabilities,
        gpu=gpu,
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
    """Write one graph's engine under its partial name, and check it. Ctrl-C stops the build."""
    progress.stage(f"{name}: reading the graph")
    monitor = Monitor(lambda text: progress.stage(f"{name}: {text}"))
    return cancellable(lambda: _build_and_check(job, name, log, monitor), monitor.cancel)


def _build_and_check(job: Job, name: GraphName, log: Log, monitor: Monitor) -> GraphEngine:
    partial = job.folder.partial(name)
    partial.parent.mkdir(parents=True, exist_ok=True)
    size, digest = _write(job, name, log, monitor)
    memory = log.scratch if job.gpu is None else _loaded_memory(job, name, log)
    file = job.folder.in_build(job.folder.engine(name))
    return GraphEngine(file=file, size=size, sha256=digest, device_memory=memory or 0)


def _loaded_memory(job: Job, name: GraphName, log: Log) -> int:
    """Load the engine, check it, and return the bytes of its activations."""
    log.forget()
    return check_engine(
        log,
        job.folder.partial(name),
        name,
        job.build.manifest.graphs[name],
        version_compatible=job.options.version_compatible,
        plugins=job.options.plugins,
    )


def _write(job: Job, name: GraphName, log: Log, monitor: Monitor) -> tuple[int, str]:
    """Build an engine; its size and SHA-256. Frees builder and network before the engine loads."""
    builder = trt.Builder(log)
    if job.options.plugins:
        load_plugins(builder.get_plugin_registry(), log, job.options.plugins.resolve())
    config = make_config(builder, job.options, monitor)
    if job.gpu:
        set_hardware(config, job.options)
    else:
        set_compute_capabilities(config, job.facts.compute_capabilities)
    if job.timing_cache:
        attach_timing_cache(config, job.timing_cache, ours=job.options.timing_cache is None)
    graph, entry = job.build.graph(name), job.build.manifest.graphs[name]
    network = read_network(builder, log, graph, entry, plugins=job.options.plugins is not None)
    log.forget()
    try:
        written = write_engine(builder, network, config, job.folder.partial(name))
    finally:
        if job.timing_cache:
            save_timing_cache(config, job.timing_cache)
    if written is None:
        title = job.library.title
        raise log.failure(f"{title} built no engine of {name}", "see docs/how-to/tensorrt.md")
    return written
