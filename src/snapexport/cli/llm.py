"""Flags of the commands that run an LLM, and the LLM and the sampling that they give.

Shared by `generate` and `chat`.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapexport.cli import flags
from snapexport.contract.graph_options import PREFILLS
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

SAMPLING = {
    "max_tokens": "most tokens to generate",
    "temperature": "randomness of the choice; 0: always the likeliest token",
    "top_p": "sample from the likeliest tokens that together have this probability",
    "top_k": "sample from this many of the likeliest tokens; 0: all",
    "min_p": "least share of the likeliest token's probability",
    "repetition_penalty": "against tokens that came before; 1: off",
    "seed": "makes sampling repeatable",
    "ignore_eos": "continue after the end-of-sequence token",
}


def add_build(parser: argparse.ArgumentParser) -> None:
    """Add BUILD."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")


def add_sampling(parser: argparse.ArgumentParser, helps: Mapping[str, str] = SAMPLING) -> None:
    """Add the fields of SamplingParams."""
    group = parser.add_argument_group("sampling")
    flags.add_fields(group, SamplingParams, helps)
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; can be given several times",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `open_llm` reads."""
    flags.add_backend(parser)
    flags.add_openvino(parser)
    parser.add_argument("--baseline", action="store_true", help="use the full-cache graphs")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument(
        "--prefill",
        choices=PREFILLS,
        default=PREFILLS[0],
        help="chunks: into a cache of full length, compressed at the end; blocks: onto the "
        "compressed cache, beyond L_max too, with --extend (default: chunks)",
    )
    parser.add_argument(
        "--no-speculation",
        dest="speculates",
        action="store_false",
        help="guess no tokens ahead, with a build that has --tokens-per-step",
    )
    parser.add_argument(
        "--compress-every",
        type=int,
        default=0,
        metavar="N",
        help="vote on an output after so many tokens, with --extend (default: never)",
    )


def open_llm(arguments: argparse.Namespace, **more: Any) -> LLM:
    """The LLM of a build. more: further arguments of `LLM`. Raises UserError."""
    names = "baseline threads backend device precision prefill speculates compress_every"
    given = {name: getattr(arguments, name) for name in names.split()}
    return LLM(arguments.build, **given, **more)
