"""Tells the peak memory of prefill for prompts of several lengths, in chunks or in blocks.

usage: python -m tools.studies.quality.prefill_memory BUILD --lengths N ... [--prefill blocks]
       [--out FILE]

Each prompt is random tokens, in a process of its own. Prints MiB that the process has allocated at
most (RssAnon: caches and scratch memory; weights are mapped), and seconds to the first token.
"""

import argparse
import json
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from snapexport import LLM, SamplingParams

INTERVAL_S = 0.02


def allocated() -> float:
    """MiB of this process that no file backs."""
    fields = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) for words in fields if words[0] == "RssAnon:") / 1024


def measure(build: Path, prefill: str, length: int, threads: int | None) -> dict[str, Any]:
    """Take one prompt, and watch the memory meanwhile."""
    llm = LLM(build, threads=threads, prefill=prefill)
    vocabulary = llm.executor.limits.vocab_size
    prompt = np.random.default_rng(length).integers(3, vocabulary, length).tolist()
    found, done = [allocated()], threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL_S):
            found.append(allocated())

    watching = threading.Thread(target=watch)
    watching.start()
    start = time.monotonic()
    llm.generate([prompt], SamplingParams(max_tokens=1))
    seconds = time.monotonic() - start
    done.set()
    watching.join()
    return {"tokens": length, "peak_mib": round(max(found), 1), "seconds": round(seconds, 2)}


def main() -> None:
    """One length after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", required=True, help="tokens of a prompt")
    parser.add_argument("--prefill", choices=("chunks", "blocks"), default="chunks")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="results as JSON")
    given = parser.parse_args()
    rows = []
    for length in given.lengths:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            one = alone.submit(measure, given.build, given.prefill, length, given.threads)
            rows.append(one.result())
        print(json.dumps(rows[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"prefill": given.prefill, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
