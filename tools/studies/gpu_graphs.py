"""Compares ONNX Runtime on a GPU with ONNX Runtime on the CPU, by builds of the bundled checkpoint.

Each build takes two prompts in chunks and decodes both beside each other over the same forced
tokens. Prints the largest difference of logits, as a share of their standard deviation, and the
share of equal likeliest tokens. bf16 is compared with fp32, since the CPU has no bf16. Needs
onnxruntime-gpu, which has both providers. --dry-run compares the CPU with itself, without a GPU.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import BackendName, open_executor
from snapexport.vault import CHECKPOINT

SIZES: dict[str, Any] = {"L_max": 2048, "kv_budget": 256, "prefill_chunk": 256, "batch": 4}
FP16 = {"dtype": "fp16", "decode_attention": "valid"}
BUILDS: dict[str, dict[str, Any]] = {
    "fp16": FP16 | {"baseline": True},
    "fp16, all slots": {"dtype": "fp16"},
    "bf16": FP16 | {"dtype": "bf16"},
    "fp32, portable": {"target": "portable", "decode_batches": [1, 2]},
    "top tokens, shared weights": FP16 | {"top_tokens": 64, "share_weights": True},
    "int8": FP16 | {"weights": "int8"},
    "int4": FP16 | {"weights": "int4"},
    "streaming": FP16 | {"policy": "streaming"},
    "snapkv": FP16 | {"policy": "snapkv"},
    "sage": FP16 | {"policy": "sage"},
    "pyramid": FP16 | {"budget": "pyramid"},
    "sparse prefill": FP16 | {"prefill_budget": 512},
    "several tokens a step": FP16 | {"tokens_per_step": 4},
    "the whole prompt at once": FP16 | {"prefill_chunk": 2048},
}
MOST = {"int4": 0.3, "int8": 0.3, "bf16": 0.6}
"""Largest difference where rounding is coarser, or done in other blocks, than fp16's .1."""
PROMPTS = {0: 1500, 2: 700}
"""Batch slots, and the lengths of their prompts."""
STEPS = 24


def logits(made: Build, backend: BackendName, baseline: bool) -> NDArray[np.float32]:
    """[2+2*STEPS, V]: after both prompts, then after each forced token of both."""
    executor = open_executor(made, backend=backend, baseline=baseline)
    words = np.random.default_rng(0)
    rows, slots = [], np.array(list(PROMPTS))
    ids, positions, lengths = np.zeros((3, made.manifest.batch), np.int64)
    for slot, length in PROMPTS.items():
        prompt = words.integers(5, 250, length).tolist()
        rows.append(executor.prefill_prompt(slot, prompt).logits.copy())
        positions[slot] = lengths[slot] = length
    for step in range(STEPS):
        ids[slots] = 5 + (7 * step + slots) % 250
        found = executor.decode(ids, positions, lengths)
        rows += [found[slot].logits.copy() for slot in slots]
        positions[slots] += 1
    executor.close()
    return np.stack(rows)


def compare(options: dict[str, Any], gpu: BackendName, folder: Path) -> list[tuple[float, float]]:
    """Differences and equal tokens; of the full cache, too, where it was built."""
    made = build(CHECKPOINT, folder / "build", **SIZES | options)
    reference = made
    if options.get("dtype") == "bf16":
        if gpu == "onnxruntime":
            return []
        reference = build(CHECKPOINT, folder / "fp32", **SIZES)
    found = []
    for baseline in (False, True) if options.get("baseline") else (False,):
        expected = logits(reference, "onnxruntime", baseline)
        got = logits(made, gpu, baseline)
        same = (got.argmax(-1) == expected.argmax(-1)).mean()
        found.append((float(np.abs(got - expected).max() / expected.std()), float(same)))
    return found


def main() -> None:
    """Print a line for each build; exit 1 where a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the CPU alone")
    dry = parser.parse_args().dry_run
    wrong = 0
    for name, options in BUILDS.items():
        with tempfile.TemporaryDirectory() as scratch:
            found = compare(options, "onnxruntime" if dry else "onnxruntime-cuda", Path(scratch))
        for difference, same in found:
            far = not difference <= MOST.get(name, 0.1)  # NaN is far, too
            wrong += far
            print(f"{name:28} {difference:.4f} {same:.3f}{'  WRONG' * far}", flush=True)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
