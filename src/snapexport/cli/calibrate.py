"""Measure on your texts how many positions each KV head of a model should keep.

Writes a file for `snapexport build --head-budget`. BUILD is a build of the model whose heads have
equal budgets: its vote, on passages of the documents, shows what each head needs (AdaKV). Use texts
like those that the model will read.

example:
  snapexport calibrate qwen.build --documents reports/ --out heads.json
  snapexport build --model qwen --L-max 32768 --head-budget heads.json --out heads.build
"""

import argparse
import json
from pathlib import Path

from snapexport.cli.console import OUT, AnswerProgress
from snapexport.cli.whole_file import whole_file
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, needs_extra

HELP = "measure how many positions each KV head should keep, for build --head-budget"

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
        "--out", type=Path, required=True, metavar="FILE", help="the head budgets, as JSON"
    )
    parser.add_argument(
        "--passages",
        type=int,
        default=8,
        metavar="N",
        help="parts of the documents to measure, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--length",
        type=int,
        metavar="TOKENS",
        help=f"of each passage (default: the build's longest prompt, at most {LONGEST})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the file, and print how far the heads differ."""
    build = Build.open(arguments.build)
    with needs_extra("eval"):
        from snapexport.measure.eval.documents import passages, read_documents
        from snapexport.measure.eval.head_budgets import calibrated, require_votes
        from snapexport.runtime.requests.prompts import load_tokenizer
    require_votes(build)
    length, count = _length(build, arguments.length), arguments.passages
    if count < 1:
        raise UserError(f"--passages {count} is below 1", "use 1 or more")
    tokenizer = load_tokenizer(build.directory)
    if tokenizer is None:
        raise UserError(f"{build.directory} has no tokenizer.json", "copy the checkpoint's into it")
    chosen = passages(read_documents(arguments.documents), tokenizer, length, count)
    source = {"passages": [passage.name for passage in chosen], "tokens": length}
    with whole_file(arguments.out, "--out") as write:
        with AnswerProgress(len(chosen), "passages") as progress:
            budget = calibrated(build, [passage.ids for passage in chosen], progress.advance)
        write(budget.text(source | {"cache_slots": build.manifest.geometry.held_whole}))
    shares = [max(row) / (sum(row) / len(row)) for row in budget.layers if row]
    report = {"file": str(arguments.out), **source, "largest_share_of_mean": round(max(shares), 2)}
    if arguments.json:
        print(json.dumps(report))
    else:
        OUT.print(
            f"{arguments.out}: {len(chosen)} passages of {length} tokens; the head that needs most "
            f"gets {max(shares):.2f} times its layer's mean"
        )
    return 0


def _length(build: Build, given: int | None) -> int:
    geometry = build.manifest.geometry
    length = min(geometry.longest_prompt, LONGEST) if given is None else given
    if not geometry.held_whole < length <= geometry.longest_prompt:
        raise UserError(
            f"passages of {length} tokens show nothing: the vote keeps all of "
            f"{geometry.held_whole}, and a prompt has up to {geometry.longest_prompt}",
            "use a --length in between",
        )
    return length
