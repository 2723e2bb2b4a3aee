"""Write a model repository for Triton Inference Server, around a build.

Two models: one that streams and holds the weights, and one that answers once. How to start, ask and
watch them is in the repository's README.md. A repository that was edited can be checked again.

examples:
  snapexport triton llama.build --out model_repository
  snapexport triton llama.build --out model_repository --copy --name llama --max-pending 128
  snapexport triton --check model_repository
"""

import argparse
import shlex
from pathlib import Path

from snapexport.cli import flags
from snapexport.cli.console import OUT
from snapexport.errors import UserError, needs_extra
from snapexport.serving.triton.options import RepositoryOptions

HELP = "build -> model repository for Triton Inference Server"

OPTIONS = {
    "name": "the streaming model's name (default: the build directory's)",
    "device": "where Triton places it (default: gpu for a build with TensorRT engines)",
    "max_pending": "requests that may wait for a slot; further ones are refused",
    "threads": "CPU threads (default: all cores)",
    "token_budget": "tokens of one step, prefill and decode (default: a prefill chunk and a slot's "
    "token each)",
    "copy": "put the build itself into the repository, for containers; a link otherwise",
    "overwrite": "replace an existing repository",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build and the repository, or a repository to check."""
    parser.add_argument("build", type=Path, nargs="?", metavar="BUILD", help="a build directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the repository to write")
    parser.add_argument("--check", type=Path, metavar="DIR", help="a repository to check instead")
    flags.add_fields(parser, RepositoryOptions, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Write a repository, or check one."""
    if arguments.check:
        return _check(arguments)
    if arguments.build is None or arguments.out is None:
        raise UserError("BUILD and --out are needed", "or --check DIR alone")
    from snapexport.serving.triton.repository import write_repository

    options = RepositoryOptions(
        build=arguments.build, out=arguments.out, **flags.values(arguments, OPTIONS)
    )
    out = write_repository(options)
    OUT.print(f"{out}: models {options.model_name} and {options.unary_name}")
    where = shlex.quote(f"--model-repository={out.absolute()}")
    OUT.print(f"tritonserver {where}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    if arguments.build or arguments.out:
        raise UserError("--check goes without BUILD and --out", "leave them out")
    if not arguments.check.is_dir():
        raise UserError(f"{arguments.check} is not a directory", "name a model repository")
    with needs_extra("triton"):
        from snapexport.serving.triton.checks import require_sound
    require_sound(arguments.check)
    OUT.print(f"{arguments.check}: sound")
    return 0
