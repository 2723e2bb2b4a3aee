"""Measure on your texts what some flags of `snapexport build` need to know of a model.

Writes a JSON file for such a flag. BUILD is a build of the model: its vote, or its traces
(--baseline), are watched on passages of the documents. Use texts like those that the model will
read.

example:
  snapexport calibrate qwen.build --documents reports/ --out measured.json
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.cli import flags
from snapexport.cli.console import OUT
from snapexport.cli.flags import require_writable, whole_file
from snapexport.cli.progress import AnswerProgress, add_progress
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, flag_of, needs_extra, require_at_least
from snapexport.methods.method import Calibration, Method
from snapexport.methods.table import METHODS
from snapexport.runtime.engine.open_executor import BACKENDS

if TYPE_CHECKING:
    from snapexport.compare.method import MethodMeasure

HELP = "measure on your texts what some flags of build need"

LONGEST = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the build, the texts, and the file to write."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--documents",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
        help="text files, or folders of them",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="what was measured, as JSON"
    )
    for one in _calibrations():
        parser.add_argument(flag_of(one.flag), action="store_true", help=one.help)
    parser.add_argument(
        "--passages",
        type=int,
        default=8,
        metavar="N",
        help="parts of the documents to measure, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--length",
        type=flags.tokens,
        metavar=flags.TOKENS,
        help=f"tokens of each passage (default: the build's longest prompt, at most {LONGEST})",
    )
    add_progress(parser)
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        metavar="NAME",
        help="what runs the graphs (default: ONNX Runtime on the CPU)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the file, and print what was found."""
    require_at_least("--passages", arguments.passages, 1)
    build = Build.open(arguments.build)
    require_writable(arguments.out, "--out")
    with needs_extra("eval"):
        from snapexport.compare.documents import open_tokenizer, passages, read_documents

        documents = read_documents(arguments.documents)
        measure: MethodMeasure = _choose_method(arguments).part("measure")
    measure.require(build)
    length, count = _length(build, arguments.length, measure.least(build)), arguments.passages
    tokenizer = open_tokenizer(build.directory)
    chosen = passages(documents, tokenizer, length, count)
    source = {"passages": [passage.name for passage in chosen], "tokens": length}
    with whole_file(arguments.out, "--out") as write:
        with AnswerProgress(len(chosen), "passages") as progress:
            prompts = [passage.ids for passage in chosen]
            text, found, words = measure.calibrate(
                build, prompts, source, progress.advance, arguments.backend
            )
        write(text)
    if arguments.json:
        print(json.dumps({"file": str(arguments.out), **source, **found}))
    else:
        OUT.print(f"{arguments.out}: {len(chosen)} passages of {length} tokens; {words}")
    return 0


def _calibrations() -> list[Calibration]:
    return [method.calibration for method in METHODS if method.calibration]


def _choose_method(arguments: argparse.Namespace) -> Method:
    """The method whose flag is given, or the one that is measured by default."""
    known = {method.calibration: method for method in METHODS if method.calibration}
    given = [one for one in known if not one.is_default and getattr(arguments, one.flag)]
    return known[next(iter(given), None) or next(one for one in known if one.is_default)]


def _length(build: Build, given: int | None, least: int) -> int:
    """least: tokens that show nothing, since the vote keeps all of them."""
    longest = build.manifest.geometry.longest_prompt
    length = min(longest, LONGEST) if given is None else given
    if not least < length <= longest:
        if least:
            why = f"the vote keeps all of {least}, and a prompt has up to {longest}"
            message = f"passages of {length} tokens show nothing: {why}"
        else:
            why = f"which has 1 to {longest} tokens"
            message = f"--length {length} is not the length of a prompt, {why}"
        raise UserError(message, "use a --length in between")
    return length
