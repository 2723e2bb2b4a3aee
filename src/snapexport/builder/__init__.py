"""Builds a build directory from a checkpoint. The only package that knows both."""

import dataclasses
from pathlib import Path
from typing import Any

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress, Silent
from snapexport.builder.staging import require_place, staged
from snapexport.contract.build_directory import Build
from snapexport.errors import needs_extra
from snapexport.exporter.read.first_look import look

__all__ = ["BuildOptions", "Progress", "build"]


def build(
    model: str | Path, out: str | Path, *, progress: Progress | None = None, **options: Any
) -> Build:
    """Build `out` from a checkpoint; `options` are BuildOptions' fields. Raises UserError."""
    return run(BuildOptions.of(model=str(model), out=Path(out), **options), progress)


def run(options: BuildOptions, progress: Progress | None = None) -> Build:
    """Build as `options` say: check all input, then trace, and write a directory whole or not.

    Imports torch and transformers, after what can be checked without them. Raises UserError.
    """
    require_place(options.out, options.overwrite)
    options.require_cache()
    options.require_positions(look(options.model, needs_weights=True))
    with needs_extra("build"):
        from snapexport.builder.resolved import resolve
        from snapexport.builder.selfcheck import verify_if_due
        from snapexport.builder.stages import write_into
    progress = progress or Silent()
    progress.stage("reading the checkpoint")
    resolved = resolve(options)
    for text in resolved.stored.left_out:
        progress.note(text)
    record = verify_if_due(resolved, progress)
    with staged(options.out, options.overwrite) as directory:
        build = write_into(directory, resolved, progress, record)
    return dataclasses.replace(build, directory=options.out)
