"""Options of `snapexport engine`, whose flags are made from this class."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from snapexport.contract.engines import DEFAULT_LEVEL, Hardware
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.contract.targets import LARGEST_PLUGIN_HEAD, EngineLibrary
from snapexport.errors import UserError, flag_of

HardwareFlag = Literal["none", "ampere-plus", "same-compute-capability"]
HARDWARE_FLAGS: tuple[HardwareFlag, ...] = get_args(HardwareFlag)

HIGHEST_LEVEL = 5


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Every choice of `snapexport engine`.

    graphs: the graphs to build; empty: all. plugins: the loadable library of the fused operators.
    workspace: bytes; None: no limit. timing_cache: None: the build's own. compute_capabilities: of
    the GPUs to build for, such as "8.9", ahead of time only; empty: all that the library knows.
    """

    graphs: tuple[str, ...] = field(default=(), metadata={"metavar": "GRAPH"})
    plugins: Path | None = field(default=None, metadata={"metavar": "FILE"})
    hardware_compat: HardwareFlag = "none"
    version_compatible: bool = False
    strip_weights: bool = False
    refit: bool = False
    optimization_level: int = DEFAULT_LEVEL
    workspace: int | None = None
    timing_cache: Path | None = field(default=None, metadata={"metavar": "FILE"})
    compute_capabilities: tuple[str, ...] = ()
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.hardware_compat not in HARDWARE_FLAGS:
            raise UserError(
                f"--hardware-compat '{self.hardware_compat}' is not known",
                f"choose from {', '.join(HARDWARE_FLAGS)}",
            )
        if not 0 <= self.optimization_level <= HIGHEST_LEVEL:
            raise UserError(
                f"--optimization-level {self.optimization_level} is not between 0 and 5",
                "3 is TensorRT's own default",
            )
        if self.workspace is not None and self.workspace < 1:
            raise UserError(
                f"--workspace {self.workspace} leaves no memory at all",
                "write it like 8GiB, or leave it out",
            )
        if self.timing_cache is not None and not self.timing_cache.parent.is_dir():
            raise UserError(
                f"the directory of --timing-cache {self.timing_cache} does not exist",
                f"make {self.timing_cache.parent} first",
            )
        if self.plugins is not None and not self.plugins.is_file():
            raise UserError(
                f"--plugins {self.plugins} is not a file",
                "name the libsnapexport_loadable.so that plugins/ builds (docs/how-to/tensorrt.md)",
            )

    def require_supported(self, library: EngineLibrary) -> None:
        """Raise UserError for options that `library` lacks, or would ignore."""
        given = {name: value for name, value in vars(self).items() if value != _DEFAULTS[name]}
        require_compatible({**given, "library": library})
        for capability in self.compute_capabilities:
            if capability not in library.capabilities:
                raise UserError(
                    f"--compute-capability {capability} is not one of {library.title}'s",
                    f"choose from {', '.join(library.capabilities)}",
                )

    def require_packing(self, target: str) -> None:
        """Raise UserError for options that only TensorRT has."""
        for name, value in vars(self).items():
            if value != _DEFAULTS[name] and name not in ("graphs", "overwrite"):
                raise UserError(
                    f"{flag_of(name)} is TensorRT's, and the build is for {target}",
                    "leave it out: weights are packed for this processor",
                )

    @property
    def hardware(self) -> Hardware:
        """The manifest's name of the hardware compatibility level."""
        levels: dict[HardwareFlag, Hardware] = {
            "none": "none",
            "ampere-plus": "ampere_plus",
            "same-compute-capability": "same_compute_capability",
        }
        return levels[self.hardware_compat]

    def graphs_of(self, manifest: Manifest) -> tuple[GraphName, ...]:
        """The graphs to build, in the manifest's order. Raises UserError.

        For an unknown graph, and for heads that the plugins do not take.
        """
        require_compatible({"plugins": self.plugins, **manifest.model.features})
        widest = max(layer.query_dim for layer in manifest.model.layers)
        if self.plugins and widest > LARGEST_PLUGIN_HEAD:
            raise UserError(
                f"--plugins is not supported for heads of {widest}: the plugins "
                f"take heads of up to {LARGEST_PLUGIN_HEAD}",
                "leave it out: TensorRT then runs the functions' bodies",
            )
        for name in self.graphs:
            if name not in manifest.graphs:
                raise UserError(
                    f"the build has no graph '{name}'",
                    f"choose from {', '.join(manifest.graphs)}",
                )
        return tuple(name for name in manifest.graphs if not self.graphs or name in self.graphs)


_DEFAULTS = {option.name: option.default for option in fields(EngineOptions)}
