"""The whole way from a checkpoint to a build directory. The only place that knows both ends."""

from pathlib import Path
from typing import Any

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress, Silent
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import needs_extra

__all__ = ["BuildOptions", "Progress", "build"]


def build(
    model: str | Path, out: str | Path, *, progress: Progress | None = None, **options: Any
) -> Build:
    """Build `out` from a checkpoint; `options` are BuildOptions' fields. Raises UserError."""
    return run(BuildOptions(model=str(model), out=Path(out), **options), progress)


def run(options: BuildOptions, progress: Progress | None = None) -> Build:
    """The same for options that are already there."""
    with needs_extra("build"):
        from snapexport.builder.pipeline import write_build
    return write_build(options, progress or Silent())
