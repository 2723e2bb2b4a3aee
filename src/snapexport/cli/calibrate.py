"""Measure on your texts what some flags of `snapexport build` need to know of a model.

Writes a file for such a flag, or for several a folder of files. BUILD is a build of the model with
traces (--baseline), watched on passages of the documents. Use texts like those that the model will
read.

example:
  snapexport calibrate qwen.build --documents reports/ --out measured.json
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
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
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="file of what was measured; with several flags a new folder of files",
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
    methods = _choose_methods(arguments)
    files = _files(arguments.out, methods)
    with needs_extra("eval"):
        from snapexport.compare.documents import open_tokenizer, passages, read_documents

        documents = read_documents(arguments.documents)
        from snapexport.compare.method import Texts  # loads torch

        measures: list[MethodMeasure] = [method.part("measure") for method in methods]
    for one in measures:
        one.require(build)
    least = max(one.least(build) for one in measures)
    length, count = _length(build, arguments.length, least), arguments.passages
    tokenizer = open_tokenizer(build.directory)
    chosen = passages(documents, tokenizer, length, count)
    source = {"passages": [passage.name for passage in chosen], "tokens": length}
    report = {"file": str(arguments.out), **source}
    with AnswerProgress(len(chosen), "passages") as progress, ExitStack() as stack:
        prompts = [passage.ids for passage in chosen]
        texts = Texts(build, prompts, progress.advance, arguments.backend)
        writers = [stack.enter_context(whole_file(file, "--out")) for file in files]
        measured = [one.calibrate(texts, source) for one in measures]
        for write, (content, found, _) in zip(writers, measured, strict=True):
            write(content)
            report |= found
    if arguments.json:
        print(json.dumps(report))
    else:
        for file, (_, _, words) in zip(files, measured, strict=True):
            OUT.print(f"{file}: {len(chosen)} passages of {length} tokens; {words}")
    return 0


def _files(out: Path, methods: Sequence[Method]) -> list[Path]:
    """A file for each method: of several, in a folder, which is made."""
    if len(methods) == 1:
        require_writable(out, "--out")
        return [out]
    if out.exists() and not out.is_dir():
        raise UserError(
            f"--out {out} is a file: several measurements go into a folder", "name a new folder"
        )
    files = [out / one.calibration.file for one in methods if one.calibration]
    require_writable(out if not out.exists() else files[0], "--out")
    out.mkdir(exist_ok=True)
    return files


def _calibrations() -> list[Calibration]:
    return [method.calibration for method in METHODS if method.calibration]


def _choose_methods(arguments: argparse.Namespace) -> list[Method]:
    """The methods whose flags are given, or the one that is measured by default."""
    known = {method.calibration: method for method in METHODS if method.calibration}
    given = [method for one, method in known.items() if getattr(arguments, one.flag)]
    return given or [method for one, method in known.items() if one.is_default]


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
