"""What recurrent states do over a long run, and what a hybrid costs beside a dense model.

python -m tools.studies.hybrids drift --steps 20000
    decode of one token at a time against transformers, in fp32, and where it is how far off
python -m tools.studies.hybrids context --lengths 1024 4096 16384 65536 131072
    milliseconds of a decode step and bytes of a request, by context, with the full cache
python -m tools.studies.hybrids prefill --tokens 4096
    milliseconds of prefill a token
python -m tools.studies.hybrids export
    seconds and bytes of a build of Qwen3.5-35B-A3B's shape, from a sparse file

Random models: only shapes count for time, and only arithmetic for drift.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.files import safetensors
from snapexport.runtime.engine.open_executor import open_executor

_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
_POSITIONS = 262144
_COMMON: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": _POSITIONS,
    "rope_parameters": _ROPE,
}
_DELTA = {
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
MODELS = {"hybrid": ("qwen3_5_text", _DELTA), "dense": ("qwen3", {})}
"""Model types and what they have beside the sizes that both share."""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=["drift", "context", "prefill", "export"])
    parser.add_argument("--steps", type=int, default=20_000, help="of drift")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--tokens", type=int, default=4096, help="of prefill")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {"drift": _drift, "context": _context, "prefill": _prefill, "export": _export}
        for row in rows[given.study](given, Path(folder)):
            print(
                " | ".join(f"{n:.4g}" if isinstance(n, float) else str(n) for n in row), flush=True
            )


def _made(name: str, folder: Path, **changes: Any) -> Path:
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **_COMMON | sizes | changes)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / name)
    return folder / name


def _built(checkpoint: Path, out: Path, L_max: int, chunk: int) -> Build:
    return build(checkpoint, out, L_max=L_max, prefill_chunk=chunk, policy="full", batch=1)


@torch.no_grad()
def _drift(given: argparse.Namespace, folder: Path) -> Iterator[tuple[object, ...]]:
    """The largest difference of logits, relative to their deviation, in each tenth of the run."""
    L_max = -(-(given.steps + 64) // 64) * 64
    checkpoint = _made("hybrid", folder, num_hidden_layers=4)
    executor = open_executor(_built(checkpoint, folder / "b", L_max, 64), threads=given.threads)
    tokens = np.random.default_rng(0).integers(3, 2048, given.steps + 64)
    executor.prefill_prompt(0, tokens[:64].tolist())
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="sdpa").eval()
    cache, worst, tenth = DynamicCache(config=model.config), 0.0, given.steps // 10
    yield "steps", "largest difference / deviation"
    for start in range(0, len(tokens), 64):
        end = min(start + 64, len(tokens))
        positions = torch.arange(start, end)[None]
        ids = torch.from_numpy(tokens[start:end])[None]
        out = model(ids, position_ids=positions, past_key_values=cache, use_cache=True).logits[0]
        for place in range(max(start, 64), end):
            step = (np.array([value]) for value in (tokens[place], place, 64))
            got, want = executor.decode(*step)[0].logits, out[place - start].numpy()
            worst = max(worst, float(np.abs(got - want).max() / want.std()))
            if (place - 63) % tenth == 0:
                yield place - 63, worst


def _context(given: argparse.Namespace, folder: Path) -> Iterator[tuple[object, ...]]:
    """Steps at the end of contexts that were never prefilled: zeros take as long."""
    yield "model", "context", "ms a step", "cache and states, MiB"
    for name in MODELS:
        checkpoint = _made(name, folder)
        for length in given.lengths:
            built = _built(checkpoint, folder / f"{name}{length}", length, 128)
            executor = open_executor(built, threads=given.threads)
            executor.prefill_prompt(0, list(range(3, 131)))
            taken = []
            for place in range(length - 24, length):
                begun = time.perf_counter()
                executor.decode(*(np.array([value]) for value in (5, place, place)))
                taken.append(time.perf_counter() - begun)
            executor.close()
            held = cache_bytes(built.manifest).decode / 2**20
            yield name, length, 1e3 * float(np.median(taken)), held


def _prefill(given: argparse.Namespace, folder: Path) -> Iterator[tuple[object, ...]]:
    yield "model", "tokens", "ms a token"
    for name in MODELS:
        built = _built(_made(name, folder), folder / f"{name}p", given.tokens, 256)
        executor = open_executor(built, threads=given.threads)
        for seed in range(2):
            prompt = np.random.default_rng(seed).integers(3, 2048, given.tokens).tolist()
            begun = time.perf_counter()
            executor.prefill_prompt(0, prompt)
            taken = time.perf_counter() - begun
        executor.close()
        yield name, given.tokens, 1e3 * taken / given.tokens


def _export(given: argparse.Namespace, folder: Path) -> Iterator[tuple[object, ...]]:
    config = AutoConfig.for_model("qwen3_5_moe_text", max_position_embeddings=_POSITIONS)
    config.architectures = ["Qwen3_5MoeForCausalLM"]
    config.save_pretrained(folder / "m")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    entries = {name: ("BF16", tuple(one.shape)) for name, one in model.state_dict().items()}
    size = sum(safetensors.tensor_bytes(*entry) for entry in entries.values())
    with (folder / "m" / "model.safetensors").open("wb") as file:
        header = safetensors.header(entries)
        file.write(header)
        file.truncate(len(header) + size)
    flags = ["--L-max", "131072", "--kv-budget", "8192", "--dtype", "bf16", "--target", "tensorrt"]
    command = [sys.executable, "-m", "snapexport", "build", "--model", str(folder / "m"), *flags]
    begun = time.perf_counter()
    subprocess.run([*command, "--out", str(folder / "b")], check=True, stdout=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    graphs = sum(path.stat().st_size for path in (folder / "b").glob("*.onnx")) / 2**20
    yield "layers", "weights, GiB", "seconds", "peak, MiB", "graphs, MiB"
    yield config.num_hidden_layers, size / 2**30, time.perf_counter() - begun, peak, graphs


if __name__ == "__main__":
    main()
