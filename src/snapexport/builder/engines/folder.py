"""Names the files of a build's engines, and lets one process at a time write them.

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

from snapexport.builder.engines.gpu import Gpu
from snapexport.builder.engines.options import EngineOptions
from snapexport.contract.engines import ENGINES
from snapexport.contract.manifest import GraphName
from snapexport.errors import UserError
from snapexport.files.whole import PARTIAL, locked, unfinished


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
        return unfinished(self.engine(graph))

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
