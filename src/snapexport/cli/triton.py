"""Write a model repository for Triton Inference Server, around a build.

Two models: one that streams and holds the weights, and one that answers once. The repository's
README.md shows how to start them and how to send requests. For OpenAI's API use Triton's own
OpenAI frontend, or `snapexport serve` without Triton.

examples:
  snapexport triton llama.build --out model_repository
  snapexport triton llama.build --out model_repository --copy --name llama
"""

import argparse
import shlex
from pathlib import Path

from snapexport.cli import flags
from snapexport.cli.console import OUT
from snapexport.errors import needs_extra
from snapexport.serving.options import RepositoryOptions

HELP = "build -> model repository for Triton Inference Server"

OPTIONS = flags.SERVED | {
    "device": "where Triton places the model (default: gpu for a build with TensorRT engines)",
    "copy": "copy the build into the repository, for containers (default: link to it)",
    "overwrite": "replace an existing repository",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the repository, and the fields of RepositoryOptions."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="the repository to write"
    )
    flags.add_fields(parser, RepositoryOptions, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Write a repository."""
    with needs_extra("triton"):
        from snapexport.serving.triton.repository import write_repository

    options = RepositoryOptions(
        build=arguments.build, out=arguments.out, **flags.values(arguments, OPTIONS)
    )
    out = write_repository(options)
    OUT.print(f"{out}: models {options.model_name} and {options.unary_name}")
    where = shlex.quote(f"--model-repository={out.absolute()}")
    OUT.print(f"tritonserver {where}")
    return 0
