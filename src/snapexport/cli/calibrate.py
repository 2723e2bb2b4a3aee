"""Measure on your texts how many positions each KV head of a model should keep, or its queries.

Writes a file for `snapexport build --head-budget`. BUILD is a build of the model whose heads have
equal budgets: its vote, on passages of the documents, shows what each head needs (AdaKV). Use texts
like those that the model will read.

With --mean-queries the file is for `snapexport build --mean-queries`, whose vote knows no question
(TriAttention). Then BUILD is any build of the model with --baseline.

example:
  snapexport calibrate qwen.build --documents reports/ --out heads.json
  snapexport build --model qwen --L-max 32768 --head-budget heads.json --out heads.build
  snapexport calibrate qwen.build --mean-queries --documents reports/ --out queries.json
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from snapexport.cli.console import OUT, AnswerProgress
from snapexport.cli.flags import whole_file
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, needs_extra

HELP = "measure what build --head-budget or --mean-queries reads"

LONGEST = 2048

Source = dict[str, Any]
"""Where the numbers of a file come from."""


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
    parser.add_argument(
        "--mean-queries",
        action="store_true",
        help="measure the queries before RoPE, in place of head budgets",
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
        from snapexport.measure.eval.head_budgets import require_votes
        from snapexport.measure.eval.mean_queries import require_queries
        from snapexport.runtime.requests.prompts import load_tokenizer
    of_queries = arguments.mean_queries
    (require_queries if of_queries else require_votes)(build)
    least = 0 if of_queries else build.manifest.geometry.held_whole
    length, count = _length(build, arguments.length, least), arguments.passages
    if count < 1:
        raise UserError(f"--passages {count} is below 1", "use 1 or more")
    tokenizer = load_tokenizer(build.directory)
    if tokenizer is None:
        raise UserError(f"{build.directory} has no tokenizer.json", "copy the checkpoint's into it")
    chosen = passages(read_documents(arguments.documents), tokenizer, length, count)
    source = {"passages": [passage.name for passage in chosen], "tokens": length}
    with whole_file(arguments.out, "--out") as write:
        with AnswerProgress(len(chosen), "passages") as progress:
            measure = _mean_queries if of_queries else _head_budgets
            text, found, words = measure(build, [p.ids for p in chosen], source, progress.advance)
        write(text)
    if arguments.json:
        print(json.dumps({"file": str(arguments.out), **source, **found}))
    else:
        OUT.print(f"{arguments.out}: {len(chosen)} passages of {length} tokens; {words}")
    return 0


def _head_budgets(
    build: Build, prompts: list[Sequence[int]], source: Source, on_prompt: Callable[[], None]
) -> tuple[str, Source, str]:
    """The file, and what is said of it, for programs and in words."""
    from snapexport.measure.eval.head_budgets import measure_head_budget

    budget = measure_head_budget(build, prompts, on_prompt)
    text = budget.text(source | {"cache_slots": build.manifest.geometry.held_whole})
    most = max(max(row) / (sum(row) / len(row)) for row in budget.layers if row)
    words = f"the head that needs most gets {most:.2f} times its layer's mean"
    return text, {"largest_share_of_mean": round(most, 2)}, words


def _mean_queries(
    build: Build, prompts: list[Sequence[int]], source: Source, on_prompt: Callable[[], None]
) -> tuple[str, Source, str]:
    from snapexport.measure.eval.mean_queries import measure_mean_queries, queries_of

    text = measure_mean_queries(build, prompts, on_prompt).text(source)
    count = queries_of(build, prompts)
    return text, {"queries_of_a_head": count}, f"{count} queries of each head"


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
