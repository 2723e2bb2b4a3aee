"""What `snapexport plan` predicts against what a running build takes.

Random weights of the shape below, built with several options; every slot generates from a prompt of
full length. Memory is the process' share of its pages (PSS): what two sessions map of one weight
file is counted once, where RSS would count it twice. The most of its own pages and the most of its
mapped ones are added, since a kernel that reclaims memory drops the latter.

Ends with one JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 4,
    "num_attention_heads": 10,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
}
L_MAX, TOKENS = 4096, 8
COMMON: dict[str, Any] = {"L_max": L_MAX, "batch": 4, "decode_batches": ()}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "full cache": {"policy": "full"},
    "16 : 1": {"kv_budget": 256},
    "batch 16": {"batch": 16},
    "L_obs 32": {"L_obs": 32},
    "chunk 128": {"prefill_chunk": 128},
    "chunk 2048": {"prefill_chunk": 2048},
    "single shot": {"prefill_chunk": L_MAX},
    "int4": {"weights": "int4"},
    "fp16": {"dtype": "fp16"},
    "portable": {"target": "portable"},
    "portable, chunk 128": {"target": "portable", "prefill_chunk": 128},
}


def main() -> None:
    """Build and measure each setting, the latter in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--measure", metavar="BUILD", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(measured(Path(arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = random_checkpoint(Path(scratch) / "model")
        rows = {name: compared(model, SETTINGS[name]) for name in arguments.only}
    print(json.dumps(rows))


def random_checkpoint(directory: Path) -> Path:
    """fp32, some 110 MB."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)).save_pretrained(directory)
    return directory


def compared(model: Path, setting: dict[str, Any]) -> dict[str, object]:
    """One setting, predicted and measured; MB."""
    from snapexport.builder import BuildOptions
    from snapexport.builder import run as run_build
    from snapexport.builder.plan.footprint import footprint
    from snapexport.builder.plan.model import read_model

    out = model.with_name("build")
    options = BuildOptions(model=str(model), out=out, overwrite=True, **COMMON | setting)
    manifest = run_build(options).manifest
    taken = footprint(read_model(str(model)), options, manifest.geometry, manifest.prefill_chunk)
    command = [sys.executable, __file__, "--measure", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak = int(done.stdout)
    row: dict[str, object] = {
        "predicted": round(taken.prefill_peak / 1e6),
        "measured": round(peak / 1e6),
        "ratio": round(taken.prefill_peak / peak, 3),
    }
    print(setting, row, file=sys.stderr)
    return row


def measured(build: Path) -> int:
    """The most that generating took."""
    from snapexport import LLM, SamplingParams

    memory = Watched()
    llm = LLM(build)
    random = np.random.default_rng(0)
    prompts = random.integers(3, SHAPE["vocab_size"], (llm.executor.limits.batch, L_MAX - TOKENS))
    llm.generate(prompts.tolist(), SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    return memory.peak()


class Watched:
    """Looks at this process' memory every few milliseconds until it is asked for the peak."""

    def __init__(self) -> None:
        self._own, self._mapped = resident_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peak(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._own + self._mapped

    def _watch(self) -> None:
        while not self._ended.is_set():
            own, mapped = resident_bytes()
            self._own, self._mapped = max(self._own, own), max(self._mapped, mapped)
            time.sleep(0.01)


def resident_bytes() -> tuple[int, int]:
    """This process' share of memory: its own pages, and the pages of files that it maps."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kilobytes = {row[0].rstrip(":"): int(row[1]) for row in rows}
    own = kilobytes["Pss_Anon"]
    return own * 1024, (kilobytes["Pss"] - own) * 1024


if __name__ == "__main__":
    main()
