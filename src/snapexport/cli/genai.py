"""Write a folder of a build that onnxruntime-genai runs by itself: in Python, C, C++ and C#.

One graph, its weights, the tokenizer and genai_config.json. Memory does not grow with the prompt.
The error for a build that it cannot take names the flags that do.

examples:
  snapexport genai llama.build --out llama-genai
  snapexport genai llama.build --out llama-genai --overwrite
"""

import argparse
from pathlib import Path

from snapexport.cli.console import OUT
from snapexport.errors import needs_extra

HELP = "build -> folder that onnxruntime-genai runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, and the folder."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="the folder to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder."""
    with needs_extra("build"):
        from snapexport.genai.folder import GenaiOptions, write_folder

    options = GenaiOptions(build=arguments.build, out=arguments.out, overwrite=arguments.overwrite)
    tokenizer = write_folder(options)
    OUT.print(f"{options.out}: a folder for onnxruntime-genai")
    OUT.print(f"tokenizer: {tokenizer.summary if tokenizer else 'none: pass token ids'}")
    return 0
