"""Memory and decode time of a running build: what one shared copy of the weights saves and costs.

Random weights of the shape below. Ends with one JSON line. `prepack` gives decode a second copy of
the weights, laid out for several slots.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}
STEPS = 30


def main() -> None:
    """Build once, then measure each setting in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--measure", nargs=2, metavar=("BUILD", "PREPACK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        build, prepack = arguments.measure
        print(json.dumps(measure(Path(build), prepack == "True")))
        return
    with tempfile.TemporaryDirectory() as scratch:
        build_random(Path(scratch), arguments.batch)
        print(json.dumps([in_process(Path(scratch) / "b", prepack) for prepack in (False, True)]))


def build_random(directory: Path, batch: int) -> None:
    """A build of random fp32 weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from snapexport.builder import build

    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE))
    model.save_pretrained(directory / "model")
    build(directory / "model", directory / "b", L_max=4096, kv_budget=1024, batch=batch)


def in_process(build: Path, prepack: bool) -> dict[str, object]:
    """`measure` in a fresh interpreter, without what building has left in this one."""
    command = [sys.executable, __file__, "--measure", str(build), str(prepack)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def measure(build: Path, prepack: bool) -> dict[str, object]:
    """Memory after loading and after a prefill and some steps, and the median step."""
    from snapexport.contract.build_directory import Build
    from snapexport.runtime.open_executor import open_executor

    opened = Build.open(build)
    engine = open_executor(opened, backend="onnxruntime", prepack=prepack)
    loaded = resident_bytes()
    prompt = list(range(2, 2 + engine.limits.prefill_chunk))
    for slot in range(engine.limits.batch):
        engine.prefill(slot, prompt, 0, len(prompt))
    seconds = []
    lengths = np.full(engine.limits.batch, len(prompt))
    for step in range(STEPS):
        started = time.perf_counter()
        engine.decode(np.ones_like(lengths), lengths + step, lengths)
        seconds.append(time.perf_counter() - started)
    return {
        "prepack": prepack,
        "batch": engine.limits.batch,
        "weights_bytes": sum(weights.size for weights in opened.manifest.weights),
        "loaded": loaded,
        "after_decode": resident_bytes(),
        "decode_ms": round(float(np.median(seconds)) * 1e3, 2),
    }


def resident_bytes() -> dict[str, int]:
    """This process's share of memory: its own pages, and the pages of files that it maps."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kilobytes = {row[0].rstrip(":"): int(row[1]) for row in rows}
    anonymous = kilobytes["Pss_Anon"]
    return {"anonymous": anonymous * 1024, "mapped_files": kilobytes["Pss_File"] * 1024}


if __name__ == "__main__":
    main()
