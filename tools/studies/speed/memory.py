"""Measures the memory of a running build, in a process of its own.

Loads no export library, whose memory would count as the build's.
"""

import threading
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.measure.bench.systems import load
from snapexport.measure.bench.turns import Row, timer
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams


def peak(build: Path, prompt: int, tokens: int) -> int:
    """The most bytes that generating takes, by samples of every few milliseconds."""
    samples, ended = [share()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            samples.append(share())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    llm = LLM(build)
    limits = llm.executor.limits
    prompts = np.random.default_rng(0).integers(3, limits.vocab_size, (limits.batch, prompt))
    llm.generate(prompts.tolist(), SamplingParams(max_tokens=tokens, ignore_eos=True))
    ended.set()
    watching.join()
    return sum(map(max, zip(*samples, strict=True)))


def prepacked(directory: Path, threads: int, prepack: bool, rounds: int) -> Row:
    """Memory after loading and after a prefill and some steps, and the median step."""
    executor = load(directory, threads=threads, prepack=prepack).executor
    loaded, limits = share(), executor.limits
    prompt = list(range(2, 2 + limits.prefill_chunk))
    for slot in range(limits.batch):
        executor.prefill_prompt(slot, prompt)
    lengths = np.full(limits.batch, len(prompt))
    seconds = [
        timer(partial(executor.decode, np.ones_like(lengths), lengths + step, lengths))()
        for step in range(rounds)
    ]
    return {
        "prepack": prepack,
        "batch": limits.batch,
        "weights_bytes": sum(weights.size for weights in Build.open(directory).manifest.weights),
        "loaded": _named(loaded),
        "after_decode": _named(share()),
        "decode_seconds": median(seconds),
    }


def _named(taken: tuple[int, int]) -> Row:
    return dict(zip(("anonymous", "mapped_files"), taken, strict=True))


def share() -> tuple[int, int]:
    """Bytes of this process' own pages, and its share (PSS) of mapped files.

    PSS counts a weight file that two sessions map once; RSS would count it twice.
    """
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kilobytes = {row[0].rstrip(":"): int(row[1]) for row in rows}
    return kilobytes["Pss_Anon"] * 1024, kilobytes["Pss_File"] * 1024
