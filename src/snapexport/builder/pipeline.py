"""Carries out a build, whose directory appears complete or not at all.

Imports torch and transformers. Checks all input before the first trace.
"""

import dataclasses

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress
from snapexport.builder.resolved import resolve
from snapexport.builder.selfcheck import verify_if_due
from snapexport.builder.stages import write_into
from snapexport.builder.staging import staged
from snapexport.contract.build_directory import Build


def write_build(options: BuildOptions, progress: Progress) -> Build:
    """Carry out a build. Raises UserError."""
    progress.stage("reading the checkpoint")
    resolved = resolve(options)
    for text in resolved.stored.told:
        progress.note(text)
    record = verify_if_due(resolved, progress)
    with staged(options.out, options.overwrite) as directory:
        build = write_into(directory, resolved, progress, record)
    return dataclasses.replace(build, directory=options.out)
