"""Times a build on a GPU by ONNX Runtime: decode by context and rows, prefill by length.

Caches hold zeros and prompts random tokens: time depends on neither. Weights may be random, too.
A checkpoint of random weights in the shape of Llama-3.1-8B, and its build, 16 GB each:

    python -c "from pathlib import Path; from tools.studies.speed import checkpoints; \
        checkpoints.make('8b', 'bf16', Path('8b'))"
    snapexport build --model 8b --L-max 131072 --kv-budget 4096 --batch 16 --decode-batches 1 4 \
        --dtype bf16 --decode-attention valid --prefill-chunk 2048 --share-weights --top-tokens 64 \
        --link-weights --out 8b.build
    python -m tools.studies.gpu_steps 8b.build --out snapstream.json
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tools.studies.speed.device import gpu

CONTEXTS = (1024, 8192, 32768, 131000)
LENGTHS = (2048, 8192, 32768, 131000)
WARM, TIMED = 4, 20


def main() -> None:
    """Print a JSON object, and write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, metavar="BUILD")
    parser.add_argument("--baseline", action="store_true", help="the full cache")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    build = Build.open(arguments.build)
    executor = open_executor(build, backend="onnxruntime-cuda", baseline=arguments.baseline)
    assert isinstance(executor, Executor), "one process measures"
    limits, words = executor.limits, np.random.default_rng(0)
    found: dict[str, Any] = {
        "gpu": gpu(),
        "decode_ms": {
            f"{count} at {context}": step(executor, words, count, context)
            for count in limits.decode_batches
            for context in CONTEXTS
            if context + WARM + TIMED < limits.positions
        },
        "prefill_s": {
            length: prefill(executor, words, length)
            for length in (LENGTHS[0], *LENGTHS)  # the first is slower
            if length <= limits.longest_prompt
        },
    }
    print(text := json.dumps(found))
    if arguments.out:
        arguments.out.write_text(text + "\n")


def step(executor: Executor, words: np.random.Generator, rows: int, context: int) -> float:
    """Milliseconds of a decode step, the median."""
    ids = words.integers(5, executor.limits.vocab_size, rows)
    lengths, times = np.full(rows, context - 8), []
    for count in range(WARM + TIMED):
        began = time.perf_counter()
        executor.decode(ids, np.full(rows, context + count % 8), lengths)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times[WARM:]) * 1e3, 3)


def prefill(executor: Executor, words: np.random.Generator, length: int) -> float:
    """Seconds from a prompt to its last token's logits, compression included."""
    prompt = words.integers(5, executor.limits.vocab_size, length).tolist()
    began = time.perf_counter()
    executor.prefill_prompt(0, prompt)
    return round(time.perf_counter() - began, 3)


if __name__ == "__main__":
    main()
