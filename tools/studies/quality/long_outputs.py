"""Tells what a cache costs along a long output, with and without compression of the output.

usage: python -m tools.studies.quality.long_outputs BUILD --documents FOLDER [--out FILE]

Real text stands for the output: every token is given, and its log probability noted. BUILD has
--baseline and --extend, and --tokens-per-step makes it faster. Prints the negative log likelihood
of each quarter of the output, beyond the full cache's, with its standard error over passages.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from snapexport.compare.documents import passages, read_documents
from snapexport.runtime.requests.llm import LLM

PARTS = 4


def losses(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of each passage, the mean negative log likelihood of each part of its output."""
    return [
        [
            -statistics.fmean(one[len(one) * part // PARTS : len(one) * (part + 1) // PARTS])
            for part in range(PARTS)
        ]
        for one in scores
    ]


def beyond(found: list[list[float]], full: list[list[float]]) -> str:
    """Such as "+.021 (.004)" for each part: the mean difference and its standard error."""
    cells = []
    for part in range(PARTS):
        each = [one[part] - other[part] for one, other in zip(found, full, strict=True)]
        error = statistics.stdev(each) / math.sqrt(len(each))
        cells.append(f"{statistics.fmean(each):+.3f} ({error:.3f})")
    return " | ".join(cells)


def main() -> None:
    """Score the same passages over every cache."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=2048, help="tokens of an output")
    parser.add_argument("--every", type=int, nargs="+", default=[128], help="compress_every")
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="results as JSON")
    given = parser.parse_args()
    caches = {"full": {"baseline": True}, "output not compressed": {}}
    caches |= {f"every {count} tokens": {"compress_every": count} for count in given.every}
    results: dict[str, list[list[float]]] = {}
    chosen = None
    for name, options in caches.items():
        llm = LLM(given.build, threads=given.threads, **options)  # type: ignore[arg-type]
        if chosen is None:
            assert llm.tokenizer, "the build has no tokenizer"
            documents = read_documents(given.documents)
            length = given.prompt + given.output
            chosen = passages(documents, llm.tokenizer, length, given.passages)
        prompts = [list(one.ids[: given.prompt]) for one in chosen]
        outputs = [list(one.ids[given.prompt :]) for one in chosen]
        scores = llm.score(prompts, outputs)
        results[name] = losses([one.logprobs for one in scores])
        full = [round(statistics.fmean(column), 3) for column in zip(*results["full"], strict=True)]
        print(name, "|", full if name == "full" else beyond(results[name], results["full"]))
        sys.stdout.flush()
        llm.executor.close()
        if given.out:
            record = {"prompt": given.prompt, "output": given.output, "losses": results}
            given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
