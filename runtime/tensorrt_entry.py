"""Which of a build's engines runs on this machine, and whether its files are as they were built.

Decides by the manifest alone: TensorRT itself is asked nothing, and refuses later what it must.
"""

from dataclasses import dataclass

from snapexport.contract.build_directory import Build, sha256_of
from snapexport.contract.engines import EngineEntry, PlanFile
from snapexport.contract.errors import UserError


@dataclass(frozen=True, slots=True)
class Machine:
    """What plans are tied to. tensorrt: its version. compute_capability: as "9.0"."""

    tensorrt: str
    compute_capability: str
    gpu: str

    def __str__(self) -> str:
        return f"{self.gpu}, compute capability {self.compute_capability}, TensorRT {self.tensorrt}"


def choose(build: Build, machine: Machine) -> EngineEntry:
    """The engine that suits this machine best. Raises UserError for none."""
    engines = build.manifest.engines
    if not engines:
        raise UserError(
            f"{build.directory} has no TensorRT engines",
            f"make them on this machine: `snapexport engine {build.directory}`",
        )
    obstacles = {name: _obstacle(entry, machine) for name, entry in engines.items()}
    fitting = [engines[name] for name, obstacle in obstacles.items() if not obstacle]
    if not fitting:
        told = "; ".join(f"{name} {obstacle}" for name, obstacle in obstacles.items())
        *_, latest = engines.values()
        raise UserError(
            f"{build.directory} has no engine for {machine}: {told}",
            f"make one on this machine: `{command(build, latest)}`",
        )
    return min(fitting, key=lambda entry: _distance(entry, machine))


def command(build: Build, entry: EngineEntry, *, overwrite: bool = True) -> str:
    """What makes an engine like `entry` on this machine, or without overwrite what it lacks."""
    words = ["snapexport engine", str(build.directory)]
    if entry.hardware_compatibility != "none":
        words.append(f"--hardware-compat {entry.hardware_compatibility.replace('_', '-')}")
    words += ["--version-compatible"] * entry.version_compatible
    words += ["--strip-plan"] * entry.stripped
    if entry.plugins:
        words.append(f"--plugins {build.directory / entry.plugins.file}")
    words += ["--overwrite"] * overwrite
    return " ".join(words)


def check_files(build: Build, entry: EngineEntry) -> None:
    """Raise UserError for a file that is missing or of another size. Contents are `verify`'s."""
    for file in _files(entry):
        path = build.directory / file.file
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            found = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{path} {found}, the manifest says {file.size} bytes",
                f"make the engine again: `{command(build, entry)}`",
            )


def verify(build: Build) -> None:
    """Read every file of every engine and compare its hash: many gigabytes. Raises UserError."""
    for entry in build.manifest.engines.values():
        check_files(build, entry)
        for file in _files(entry):
            if sha256_of(build.directory / file.file) != file.sha256:
                raise UserError(
                    f"{build.directory / file.file} was changed after it was made",
                    f"make the engine again: `{command(build, entry)}`",
                )


def _files(entry: EngineEntry) -> list[PlanFile]:
    """The plans, and the plugin library if there is one."""
    return [*entry.plans.values(), *([entry.plugins] if entry.plugins else [])]


def _obstacle(entry: EngineEntry, machine: Machine) -> str | None:
    """Why the engine can't run here."""
    if not _hardware_fits(entry, machine):
        return f"is for compute capability {entry.compute_capability}"
    if entry.tensorrt == machine.tensorrt:
        return None
    if not entry.version_compatible:
        return f"is of TensorRT {entry.tensorrt}"
    # Version-compatible plans run on newer versions, never on older ones.
    newer = _numbers(machine.tensorrt) > _numbers(entry.tensorrt)
    return None if newer else f"is of TensorRT {entry.tensorrt}, which is newer"


def _hardware_fits(entry: EngineEntry, machine: Machine) -> bool:
    if entry.hardware_compatibility == "ampere_plus":
        return _numbers(machine.compute_capability) >= (8, 0)
    return entry.compute_capability == machine.compute_capability


def _distance(entry: EngineEntry, machine: Machine) -> tuple[int, bool]:
    """Less is better: what was built for this very GPU, then for GPUs like it, then for more.

    Plans without hardware compatibility run on other GPUs of the capability, but are not meant to.
    """
    meant_for_others = entry.hardware_compatibility == "none" and entry.gpu != machine.gpu
    order = ("none", "same_compute_capability", "ampere_plus")
    hardware = len(order) if meant_for_others else order.index(entry.hardware_compatibility)
    return hardware, entry.version_compatible


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
