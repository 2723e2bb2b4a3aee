"""Builds a build directory from a checkpoint. The only package that knows both."""

from pathlib import Path
from typing import Any

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress, Silent
from snapexport.contract.build_directory import Build
from snapexport.errors import needs_extra

__all__ = ["BuildOptions", "Progress", "build"]


def build(
    model: str | Path, out: str | Path, *, progress: Progress | None = None, **options: Any
) -> Build:
    """Build `out` from a checkpoint; `options` are BuildOptions' fields. Raises UserError."""
    return run(BuildOptions.of(model=str(model), out=Path(out), **options), progress)


def run(options: BuildOptions, progress: Progress | None = None) -> Build:
    """Build as `options` say. Raises UserError."""
    with needs_extra("build"):
        from snapexport.builder.pipeline import write_build
    return write_build(options, progress or Silent())
