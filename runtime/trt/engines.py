"""Loads a build's engine files as TensorRT engines: plugins, deserializing, refitting, checks.

Works with TensorRT 10.15 and newer, and with TensorRT for RTX. Knows no buffer and runs nothing.
"""

import logging
import mmap
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.contract import tensorrt_bindings
from snapexport.contract.build_directory import Build, in_place
from snapexport.contract.engines import EngineEntry
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.errors import UserError
from snapexport.files.dtypes import of_tensorrt
from snapexport.files.whole import write_whole
from snapexport.runtime.engine.cuda import CudaMemory
from snapexport.runtime.trt import entry

if TYPE_CHECKING:
    import tensorrt_rtx as rtx

    from snapexport.contract.tensorrt_bindings import trt

LOG = logging.getLogger("snapexport.tensorrt")
LOG.addHandler(logging.NullHandler())  # or Python prints warnings on stderr

_KEPT_ERRORS = 8


def open_engines(
    build: Build, wanted: Iterable[GraphName] | None = None
) -> "tuple[CudaMemory, Engines]":
    """Open the present GPU, and the engines that were built for it. Raises UserError.

    wanted: the graphs that are going to be loaded; None means all.
    """
    library = tensorrt_bindings.library_of(build)
    tensorrt_bindings.use(library)
    version = tensorrt_bindings.version()
    memory = CudaMemory()
    device = memory.device
    machine = entry.Machine(version, device.compute_capability, device.name, library.title)
    return memory, Engines(build, entry.choose(build, machine, wanted), machine.gpu)


class JitCache:
    """The kernels that TensorRT for RTX compiles for a GPU when it first loads an engine, on disk.

    The first load takes as long as the compilation; later ones read the file. TensorRT for RTX
    itself refuses a file of another GPU, driver or version, and then compiles again.
    """

    def __init__(self, engine: Path, gpu: str) -> None:
        """engine: its file; the cache is beside it. gpu: a name, for machines with several."""
        model = "".join(letter if letter.isalnum() else "_" for letter in gpu.lower())
        self.path = engine.with_suffix(f".{model}.jit_cache")
        self._cache: rtx.IRuntimeCache | None = None

    def context(
        self, engine: "rtx.ICudaEngine", strategy: "rtx.ExecutionContextAllocationStrategy"
    ) -> "rtx.IExecutionContext":
        """An execution context whose kernels come from the file, where they fit."""
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        self._cache = config.create_runtime_cache()
        if self.path.is_file() and not self._cache.deserialize(self.path.read_bytes()):
            LOG.warning("%s is of another GPU, driver or version: compiling again", self.path)
        config.set_runtime_cache(self._cache)
        return engine.create_execution_context(config)

    def save(self) -> None:
        """Write the file. A build that cannot be written to keeps none."""
        if self._cache is None:
            return
        try:
            write_whole(self.path, memoryview(self._cache.serialize()))
        except OSError as problem:
            LOG.warning("compiled kernels are not kept: %s", problem)


class Engines:
    """The engines of one engine entry. Keep the object as long as what it loaded.

    errors: TensorRT's latest error messages.
    """

    def __init__(self, build: Build, chosen: EngineEntry, gpu: str = "") -> None:
        """Load the plugins, and check the files' sizes. gpu: its name. Raises UserError."""
        from snapexport.contract.tensorrt_bindings import trt

        entry.check_files(build, chosen)
        self._build = build
        self._entry = chosen
        self._gpu = gpu
        self._logger, self.errors = _logger()
        self._runtime = trt.Runtime(self._logger)
        # A version-compatible engine brings the code of the TensorRT that built it.
        self._runtime.engine_host_code_allowed = chosen.version_compatible
        if chosen.plugins and chosen.needs_plugins:
            self._load_plugins(build.directory / chosen.plugins.file)

    def load(self, name: GraphName) -> "trt.ICudaEngine":
        """Load one graph's engine with its weights, and check it. Raises UserError."""
        if name not in self._entry.graphs:
            more = entry.command(self._build, self._entry, overwrite=False)
            raise UserError(
                f"no engine of {name}.onnx was built for {self._entry.gpu}",
                f"make it: `{more}`",
            )
        self.errors.clear()
        path = self._build.directory / self._entry.graphs[name].file
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise self._refused(
                f"TensorRT cannot load {path}",
                way_out=", or end what else runs on the GPU: each engine copies the weights",
            )
        if self._entry.stripped:
            self._refit(engine, self._build.graph(name))
        self._check(path, engine, self._build.manifest.graphs[name])
        self._check_aliases(path, engine, in_place(name, self._build.manifest.graphs[name]))
        return engine

    def jit_cache(self, name: GraphName) -> JitCache | None:
        """Where an engine's kernels are kept that are compiled when it is loaded; None: nowhere.

        An engine that was built on its GPU contains its kernels.
        """
        if self._entry.gpu is not None:
            return None
        return JitCache(self._build.directory / self._entry.graphs[name].file, self._gpu)

    def _load_plugins(self, library: Path) -> None:
        if self._runtime.get_plugin_registry().load_library(str(library)) is None:
            raise self._refused(
                f"TensorRT cannot load the plugins of {library}, or has plugins of these names"
            )

    def _refit(self, engine: "trt.ICudaEngine", graph: Path) -> None:
        """Take the weights, which a stripped engine lacks, from the graph's own files."""
        from snapexport.contract.tensorrt_bindings import trt

        refitter = trt.Refitter(engine, self._logger)
        parser = trt.OnnxParserRefitter(refitter, self._logger)
        if not (parser.refit_from_file(str(graph)) and refitter.refit_cuda_engine()):
            problems = [parser.get_error(i).desc() for i in range(parser.num_errors)]
            raise self._refused(f"TensorRT cannot take the weights from {graph}", problems)

    def _check(self, path: Path, engine: "trt.ICudaEngine", graph: GraphEntry) -> None:
        promised = {spec.name: (spec.dtype, spec.shape) for spec in (*graph.inputs, *graph.outputs)}
        tensors = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        found = {name: _describe(engine, name) for name in tensors}
        for name in sorted(promised.keys() | found.keys()):
            if promised.get(name) != found.get(name):
                raise UserError(
                    f"{path} has {found.get(name)} for '{name}', "
                    f"the manifest says {promised.get(name)}",
                    f"make the engine again: `{self._again}`",
                )

    def _check_aliases(self, path: Path, engine: "trt.ICudaEngine", pairs: dict[str, str]) -> None:
        """Refuse an engine that does not write the caches in place."""
        for present, past in pairs.items():
            if engine.get_aliased_input_tensor(present) != past:
                raise self._refused(f"{path} does not write '{past}' in place")

    def _refused(self, message: str, problems: Sequence[str] = (), way_out: str = "") -> UserError:
        """An error with TensorRT's last message. way_out: beside making the engine again."""
        reasons = [*problems, *self.errors]
        reason = f": {reasons[-1].strip()}" if reasons else ""
        return UserError(message + reason, f"make the engine again: `{self._again}`{way_out}")

    @property
    def _again(self) -> str:
        return entry.command(self._build, self._entry)


def _describe(engine: "trt.ICudaEngine", name: str) -> tuple[str, list[int]]:
    dtype = engine.get_tensor_dtype(name).name
    return of_tensorrt(dtype), list(engine.get_tensor_shape(name)[:])


def _logger() -> "tuple[trt.ILogger, deque[str]]":
    """Send TensorRT's messages to Python's log, and keep its latest errors for ours."""
    from snapexport.contract.tensorrt_bindings import trt

    severities = trt.ILogger.Severity
    levels = {
        severities.INTERNAL_ERROR: logging.ERROR,
        severities.ERROR: logging.ERROR,
        severities.WARNING: logging.WARNING,
    }
    errors: deque[str] = deque(maxlen=_KEPT_ERRORS)

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # not super(): the bindings require it

        def log(self, severity: "trt.ILogger.Severity", msg: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                errors.append(msg)
            LOG.log(level, msg)

    return Logger(), errors
