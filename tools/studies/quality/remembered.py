"""Tells whether a number of a short prompt is still known after a long output.

usage: python -m tools.studies.quality.remembered BUILD --documents FOLDER ... [--out FILE]

Real text stands for the output, and the number is asked for behind it. BUILD has --baseline and
--extend. Prints the share of numbers found over each cache, with the standard error.
"""

import argparse
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.compare.documents import passages, read_documents
from snapexport.contract.build_directory import Build
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import load_tokenizer
from snapexport.runtime.requests.request import SamplingParams

PROMPT = "The secret number of the harbour is {}. Keep it in mind while you read on.\n\n"
ASKED = "\n\nThe secret number of the harbour is"
LONGEST_ANSWER = 10


def texts(given: argparse.Namespace, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of one output of each passage."""
    documents = read_documents(given.documents)
    chosen = passages(documents, tokenizer, given.output, given.samples)
    return [list(one.ids) for one in chosen]


def found(given: argparse.Namespace, options: dict[str, Any]) -> list[bool]:
    """Whether each sample's number is the next that is written."""
    tokenizer = load_tokenizer(Build.open(given.build).directory)
    assert tokenizer, "the build has no tokenizer"
    draws = random.Random(given.seed)
    outputs = texts(given, tokenizer)
    numbers = [str(draws.randrange(10**6, 10**7)) for _ in outputs]
    asked = tokenizer.encode(ASKED, add_special_tokens=False).ids
    llm = LLM(given.build, threads=given.threads, **options)
    answers = llm.generate(
        [PROMPT.format(number) for number in numbers],
        SamplingParams(max_tokens=LONGEST_ANSWER, temperature=0),
        [output + asked for output in outputs],
    )
    llm.executor.close()
    return [number in answer.text for number, answer in zip(numbers, answers, strict=True)]


def main() -> None:
    """Ask over every cache."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=int, default=2000, help="tokens of an output")
    parser.add_argument("--every", type=int, nargs="+", default=[128, 512], help="compress_every")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="results as JSON")
    given = parser.parse_args()
    caches: dict[str, dict[str, Any]] = {"full": {"baseline": True}, "output not compressed": {}}
    caches |= {f"every {count} tokens": {"compress_every": count} for count in given.every}
    results: dict[str, list[bool]] = {}
    for name, options in caches.items():
        results[name] = found(given, options)
        share = statistics.fmean(results[name])
        error = math.sqrt(share * (1 - share) / len(results[name]))
        print(f"{name} | {share:.2f} ({error:.2f})", flush=True)
        if given.out:
            record = {"output": given.output, "found": results}
            given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
