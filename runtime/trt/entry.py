"""Chooses the engine of a build that suits this machine, and checks that its files are unchanged.

Decides by the manifest and never loads TensorRT, which may still refuse an engine later.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import DEFAULT_LEVEL, EngineEntry, EngineFile
from snapexport.contract.manifest import GraphName
from snapexport.errors import UserError
from snapexport.files.whole import sha256_of


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine to which engines are tied.

    tensorrt: a version of the library `title`. compute_capability: such as "9.0".
    """

    tensorrt: str
    compute_capability: str
    gpu: str
    title: str = "TensorRT"

    def __str__(self) -> str:
        capability = f"compute capability {self.compute_capability}"
        return f"{self.gpu}, {capability}, {self.title} {self.tensorrt}"


def choose(
    build: Build, machine: Machine, wanted: Iterable[GraphName] | None = None
) -> EngineEntry:
    """Return the engine that suits this machine best. Raises UserError if none does.

    wanted: the graphs that it has to run; None for all. An engine that lacks fewer comes first.
    """
    engines = build.manifest.engines
    if not engines:
        raise UserError(
            f"{build.directory} has no TensorRT engines",
            f"make them on this machine: `snapexport engine {shlex.quote(str(build.directory))}`",
        )
    obstacles = {name: _obstacle(entry, machine) for name, entry in engines.items()}
    fitting = [engines[name] for name, obstacle in obstacles.items() if not obstacle]
    if not fitting:
        reasons = "; ".join(f"{name} {obstacle}" for name, obstacle in obstacles.items())
        *_, latest = engines.values()
        raise UserError(
            f"{build.directory} has no engine for {machine}: {reasons}",
            f"make one on this machine: `{command(build, latest)}`",
        )
    graphs = set(build.manifest.graphs if wanted is None else wanted)
    return min(fitting, key=lambda one: (len(graphs - one.graphs.keys()), _distance(one, machine)))


def command(
    build: Build, entry: EngineEntry, *, overwrite: bool = True, changed: EngineFile | None = None
) -> str:
    """Return the command that makes an engine like `entry` on this machine.

    overwrite: False makes only the engines that it lacks. changed: a file that is missing or not as
    it was. If that is the plugin library, the command has a place for the user to name it.
    """
    words = ["snapexport", "engine", str(build.directory)]
    if entry.gpu is None:
        words += ["--compute-capability", *entry.compute_capabilities]
    if entry.hardware_compatibility != "none":
        words += ["--hardware-compat", entry.hardware_compatibility.replace("_", "-")]
    words += ["--version-compatible"] * entry.version_compatible
    words += ["--strip-weights"] * entry.stripped
    words += ["--refit"] * entry.refit
    if entry.optimization_level != DEFAULT_LEVEL:
        words += ["--optimization-level", str(entry.optimization_level)]
    if entry.workspace is not None:
        words += ["--workspace", str(entry.workspace)]
    if entry.plugins:
        place = build.directory / entry.plugins.file
        usable = place.is_file() and entry.plugins != changed
        words += ["--plugins", str(place) if usable else "FILE"]
    words += ["--overwrite"] * overwrite
    return shlex.join(words)


def check_files(build: Build, entry: EngineEntry) -> None:
    """Raise UserError for a file that is missing or of another size. `verify` reads contents."""
    for file in _files(entry):
        path = build.directory / file.file
        size = build.file(file.file).stat().st_size if path.exists() else None
        if size != file.size:
            found = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{path} {found}, the manifest says {file.size} bytes",
                f"make the engine again: `{command(build, entry, changed=file)}`",
            )


def verify(build: Build) -> None:
    """Read every file of every engine, many gigabytes, and compare hashes. Raises UserError."""
    for entry in build.manifest.engines.values():
        check_files(build, entry)
        for file in _files(entry):
            if sha256_of(build.directory / file.file) != file.sha256:
                raise UserError(
                    f"{build.directory / file.file} was changed after it was made",
                    f"make the engine again: `{command(build, entry, changed=file)}`",
                )


def _files(entry: EngineEntry) -> list[EngineFile]:
    """The engines, and the plugin library if there is one."""
    return [*entry.graphs.values(), *([entry.plugins] if entry.plugins else [])]


def _obstacle(entry: EngineEntry, machine: Machine) -> str | None:
    """Why the engine can't run here."""
    if not _hardware_fits(entry, machine):
        return f"is for compute capability {', '.join(entry.compute_capabilities)}"
    if entry.version == machine.tensorrt:
        return None
    if not entry.version_compatible:
        return f"is of {machine.title} {entry.version}"
    # Version-compatible engines run on newer versions, never on older ones.
    newer = _numbers(machine.tensorrt) > _numbers(entry.version)
    return None if newer else f"is of {machine.title} {entry.version}, which is newer"


def _hardware_fits(entry: EngineEntry, machine: Machine) -> bool:
    if entry.hardware_compatibility == "ampere_plus":
        return _numbers(machine.compute_capability) >= (8, 0)
    return machine.compute_capability in entry.compute_capabilities


def _distance(entry: EngineEntry, machine: Machine) -> tuple[int, bool, bool, bool]:
    """Return a sort key, best first.

    Engines for this very GPU come first, then for GPUs like it, then for more. Engines without
    hardware compatibility run on other GPUs of the capability, but are not meant to: they come
    last. Among equals a plain engine wins: a refittable one may be slower, a stripped one loads
    later.
    """
    meant_for_others = entry.hardware_compatibility == "none" and entry.gpu not in (
        None,
        machine.gpu,
    )
    order = ("none", "same_compute_capability", "ampere_plus")
    hardware = len(order) if meant_for_others else order.index(entry.hardware_compatibility)
    return hardware, entry.version_compatible, entry.stripped, entry.refit


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
