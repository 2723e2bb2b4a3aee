"""Names the files of a build's engines, and puts finished engines into folder and manifest.

One process at a time writes them. The manifest names only complete engines at any time, and all
engines of one entry were built by the same TensorRT with the same options. A kill loses only the
engine in work.

engines/NAME/decode.engine  an engine; decode.engine.partial until it is complete
engines/NAME.log            TensorRT's messages
engines/GPU.timing.cache    measured times of kernels, for all engines built on that GPU

NAME is made of the engines' GPUs and options: see `engine_name` and `ahead_of_time_name`.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from snapexport.builder.engines.options import EngineOptions
from snapexport.contract.engines import ENGINES, EngineEntry, EngineFile, GraphEngine
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.errors import UserError, needs_extra
from snapexport.files.whole import PARTIAL, copy_whole, finish, locked, partial_path, sha256_of


@dataclass(frozen=True)
class Gpu:
    """name: such as NVIDIA H200. compute_capability: such as 9.0. free: bytes."""

    name: str
    compute_capability: str
    free: int


def present_gpu() -> Gpu:
    """The current device: CUDA_VISIBLE_DEVICES chooses it. Raises UserError where there is none."""
    with needs_extra("tensorrt"):
        from cuda.bindings import runtime as cuda

    problem, device = cuda.cudaGetDevice()
    if not problem:
        problem, properties = cuda.cudaGetDeviceProperties(device)
    if not problem:
        problem, free, _ = cuda.cudaMemGetInfo()
    if problem:
        raise UserError(
            f"CUDA finds no GPU: {problem.name}",
            "an engine is built on the GPU that will run it: check `nvidia-smi`; "
            "--estimate and `snapexport lint` need no GPU",
        )
    capability = f"{properties.major}.{properties.minor}"
    return Gpu(properties.name.rstrip(b"\0").decode(), capability, free)


def ahead_of_time_name(compute_capabilities: Sequence[str]) -> str:
    """Folder name such as `rtx-sm_89-sm_120`."""
    return "-".join(["rtx", *map(_sm, compute_capabilities)])


def engine_name(gpu: Gpu, options: EngineOptions) -> str:
    """Folder name such as `sm_90-nvidia_h200`, `sm_90` or `ampere_plus-stripped`."""
    runs_on = {
        "none": _gpu_name(gpu),
        "same_compute_capability": _sm(gpu.compute_capability),
        "ampere_plus": "ampere_plus",
    }[options.hardware]
    marks = {
        "version_compatible": options.version_compatible,
        "stripped": options.strip_weights,
        "refit": options.refit,
    }
    return "-".join([runs_on, *(mark for mark, holds in marks.items() if holds)])


def timing_cache(directory: Path, gpu: Gpu) -> Path:
    """Timing cache of a build, for engines built on `gpu`."""
    return directory / ENGINES / f"{_gpu_name(gpu)}.timing.cache"


def _gpu_name(gpu: Gpu) -> str:
    model = re.sub("[^a-z0-9]+", "_", gpu.name.lower()).strip("_")
    return f"{_sm(gpu.compute_capability)}-{model}"


def _sm(compute_capability: str) -> str:
    return "sm_" + compute_capability.replace(".", "")


@dataclass(frozen=True)
class EngineFolder:
    """The folder of the engines `name`, in the build at `directory`."""

    directory: Path
    name: str

    @property
    def path(self) -> Path:
        return self.directory / ENGINES / self.name

    @property
    def log(self) -> Path:
        return self.directory / ENGINES / f"{self.name}.log"

    def engine(self, graph: GraphName) -> Path:
        """Path of a complete engine."""
        return self.path / f"{graph}.engine"

    def partial(self, graph: GraphName) -> Path:
        """Path of an engine while it is written."""
        return partial_path(self.engine(graph))

    def in_build(self, path: Path) -> str:
        """A file's name in the manifest."""
        return path.relative_to(self.directory).as_posix()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Lock the build's engines; before and after, remove unfinished files.

        Raises UserError if another process holds the lock.
        """
        self.path.parent.mkdir(exist_ok=True)
        with ExitStack() as lock:
            try:
                lock.enter_context(locked(self.path.parent))
            except BlockingIOError:
                raise UserError(
                    f"another process builds engines in {self.path.parent}", "wait until it is done"
                ) from None
            self._remove_partials()
            try:
                yield
            finally:
                self._remove_partials()
                self._remove_if_empty()

    def _remove_partials(self) -> None:
        """Remove all unfinished files, also of other engines and of timing caches."""
        for partial in self.path.parent.rglob(f"*{PARTIAL}"):
            partial.unlink()

    def _remove_if_empty(self) -> None:
        for directory in (self.path, self.path.parent):
            with suppress(OSError):  # it is not empty
                directory.rmdir()


def plugin_file(library: Path, folder: EngineFolder) -> EngineFile:
    """The manifest's record of the plugin library's copy beside the engines."""
    place = folder.in_build(folder.path / library.name)
    return EngineFile(file=place, size=library.stat().st_size, sha256=sha256_of(library))


def left_to_build(
    folder: EngineFolder, facts: EngineEntry, graphs: tuple[GraphName, ...]
) -> tuple[GraphName, ...]:
    """The graphs without an engine. Raises UserError if none is left, or if options differ."""
    former = Manifest.read(folder.directory).engines.get(folder.name)
    if former is None:
        return graphs
    if differences := _differences(former, facts):
        raise UserError(
            f"{folder.path} holds engines with other options: {', '.join(differences)}",
            "pass --overwrite to replace all of them",
        )
    left = tuple(name for name in graphs if name not in former.graphs)
    if not left:
        raise UserError(
            f"{folder.path} has every engine already", "pass --overwrite to build them again"
        )
    return left


def record(
    folder: EngineFolder,
    facts: EngineEntry,
    library: Path | None,
    graph: GraphName,
    engine: GraphEngine,
) -> None:
    """Put a finished engine into its folder and the manifest. facts: the entry without engines."""
    engines = _make_way(folder, facts, graph)
    if facts.plugins and library:
        copy_whole(library, folder.directory / facts.plugins.file)
    finish(folder.engine(graph))
    _write(folder, facts.model_copy(update={"graphs": engines | {graph: engine}}))


def _make_way(
    folder: EngineFolder, facts: EngineEntry, graph: GraphName
) -> dict[GraphName, GraphEngine]:
    """Remove the engines that the new one replaces, from the manifest first. Returns the rest."""
    former = Manifest.read(folder.directory).engines.get(folder.name)
    if former is None:
        return {}
    kept = former.graphs if _facts(former) == facts else {}
    kept = {name: engine for name, engine in kept.items() if name != graph}
    if kept != former.graphs:
        _write(folder, facts.model_copy(update={"graphs": kept}) if kept else None)
    replaced = [engine.file for name, engine in former.graphs.items() if name not in {graph, *kept}]
    if former.plugins and former.plugins.file != (facts.plugins and facts.plugins.file):
        replaced.append(former.plugins.file)
    for file in replaced:
        (folder.directory / file).unlink(missing_ok=True)
    return kept


def _facts(entry: EngineEntry) -> EngineEntry:
    return entry.model_copy(update={"graphs": {}})


def _differences(former: EngineEntry, facts: EngineEntry) -> list[str]:
    """Options of the existing engines that differ from the wanted ones, as text."""
    fields = [name for name in type(facts).model_fields if name != "graphs"]
    pairs = [(name, getattr(former, name), getattr(facts, name)) for name in fields]
    return [f"{name} {_show(a)}, not {_show(b)}" for name, a, b in pairs if a != b]


def _show(fact: object) -> str:
    return f"{fact.file} ({fact.sha256[:12]})" if isinstance(fact, EngineFile) else str(fact)


def _write(folder: EngineFolder, entry: EngineEntry | None) -> None:
    manifest = Manifest.read(folder.directory)
    engines = {name: other for name, other in manifest.engines.items() if name != folder.name}
    engines |= {folder.name: entry} if entry else {}
    manifest.model_copy(update={"engines": engines}).write(folder.directory)
