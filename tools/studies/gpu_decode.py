"""Times decode on a GPU against the roofline, and compares the GPU with the CPU: under 10 minutes.

Builds the shape of Llama-3.1-8B from random weights, 32 GB in --work meanwhile, and times steps of
1 and of 16 requests, each in 4,096 cache slots. A quarter of its layers, with and without one
product for q, k and v, says what that is worth. Then prompts, steps, turns and experts of small
models are compared with the CPU's. Prints JSON after each part, and writes it to --out: what was
measured is kept. --dry-run does all of it on the CPU at tiny sizes, where times mean nothing.

    python -m tools.studies.gpu_decode --work DIRECTORY --out gpu_decode.json
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.builder import build
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import tensor_bytes
from snapexport.contract.names import is_past
from snapexport.contract.targets import TARGETS
from snapexport.files.dtypes import DType
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import PrefillForm
from snapexport.runtime.engine.open_executor import BackendName, open_executor
from snapexport.vault import CHECKPOINT
from tools.studies.gpu_steps import step
from tools.studies.speed import checkpoints
from tools.studies.speed.device import Device

ROUNDS = 3
CONTEXT = 8192
SIZES: dict[str, Any] = {"L_max": 131072, "kv_budget": 4096, "prefill_chunk": 2048}
DRY_SIZES: dict[str, Any] = {"L_max": 512, "kv_budget": 128, "prefill_chunk": 64}
DRY_SHAPE = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
VALID: dict[str, Any] = {"decode_attention": "valid"}
STEPS: dict[str, Any] = VALID | {"decode_batches": (1,), "top_tokens": 64}
COMPARED: dict[str, tuple[str, dict[str, Any], PrefillForm]] = {
    "prompts and steps": ("vault", VALID, "chunks"),
    "turns": ("vault", VALID | {"extend": True}, "blocks"),
    "int4": ("vault", VALID | {"weights": "int4"}, "chunks"),
    "experts, latents": ("latents", {}, "chunks"),
}
SMALL: dict[str, Any] = {"L_max": 512, "kv_budget": 128, "prefill_chunk": 64, "batch": 2}


@contextmanager
def products_apart() -> Iterator[None]:
    """Builds of this block have a product for each of q, k and v."""
    record = TARGETS["onnxruntime"]
    assert isinstance(TARGETS, dict), "it is replaced here"
    TARGETS["onnxruntime"] = replace(record, one_product=())
    try:
        yield
    finally:
        TARGETS["onnxruntime"] = record


def step_times(made: Build, device: Device, rate: float) -> dict[str, Any]:
    """Milliseconds of a step for each number of requests, and as multiples of the roofline."""
    with device.opened(made) as executor:
        words = np.random.default_rng(0)
        context = min(CONTEXT, made.manifest.geometry.L_max - 64)
        return {
            str(rows): {
                "ms": (ms := step(executor, words, rows, context)),
                "roofline_ms": (least := 1e3 * least_bytes(made, rows) / rate),
                "of_roofline": round(ms / least, 3),
            }
            for rows in executor.limits.decode_batches
        }


def least_bytes(made: Build, rows: int) -> int:
    """Bytes that a step reads: all weights but the embedding's other rows, and full caches."""
    manifest = made.manifest
    weights = sum(one.size for one in manifest.weights if "embed_tokens" not in one.file)
    graph = manifest.graphs["decode"]
    caches = sum(tensor_bytes(spec) for spec in graph.inputs if is_past(spec.name))
    return weights + caches * rows // manifest.batch


def logits(made: Build, backend: BackendName, form: PrefillForm, steps: int) -> NDArray[np.float32]:
    """[2+2*steps, V]: after two prompts, and after each forced token of both."""
    executor = open_executor(made, backend=backend, prefill=form)
    assert isinstance(executor, Executor)
    words, slots = np.random.default_rng(0), range(2)
    lengths, rows = np.array([made.manifest.geometry.L_max * 3 // 4, 100]), []
    for slot, length in enumerate(lengths):
        prompt = words.integers(5, 250, length).tolist()
        rows.append(executor.prefill_prompt(slot, prompt).logits.copy())
    for count in range(steps):
        ids = words.integers(5, 250, 2)
        found = executor.decode(ids, lengths + count, lengths)
        rows += [found[int(slot)].logits.copy() for slot in slots]
    executor.close()
    return np.stack(rows)


def compare(device: Device, work: Path) -> dict[str, dict[str, float]]:
    """For each small build: the largest difference over the deviation, and equal top tokens."""
    gpu: BackendName = "onnxruntime" if device.dry else "onnxruntime-cuda"
    found = {}
    for name, (model, options, form) in COMPARED.items():
        checkpoint = CHECKPOINT if model == "vault" else checkpoints.make(model, "fp16", work)
        at = work / "compared"
        more: Mapping[str, Any] = SMALL | {"dtype": "fp16"} | options
        made = build(checkpoint, at, overwrite=True, **more)
        cpu, other = (logits(made, one, form, 4) for one in ("onnxruntime", gpu))
        found[name] = {
            "of_deviation": float(np.abs(other - cpu).max() / cpu.std()),
            "same_token": float((other.argmax(-1) == cpu.argmax(-1)).mean()),
        }
        shutil.rmtree(at)
    return found


def shape(*, dry: bool, share: int = 1) -> dict[str, Any]:
    """The shape of Llama-3.1-8B, or a tiny one, with 1/share of its layers."""
    whole = DRY_SHAPE if dry else checkpoints.SHAPES["8b"]
    like = checkpoints.SHAPES["8b"] | whole
    return like | {"num_hidden_layers": like["num_hidden_layers"] // share}


def measure(device: Device, work: Path) -> Iterator[dict[str, Any]]:
    """Parts of the report, as they are done."""
    probe = device.probes()[0]
    rate = max(probe.labels["amount"] / probe.timed() for _ in range(ROUNDS))
    yield {"device": device.described(), "bytes_per_second": rate}
    sizes = DRY_SIZES if device.dry else SIZES
    dtype: DType = "fp16" if device.dry else "bf16"
    batch = 4 if device.dry else 16
    options = STEPS | sizes | {"dtype": dtype, "batch": batch, "share_weights": True}
    for name, share, apart in (
        ("a quarter of the layers, fused", 4, False),
        ("a quarter of the layers, products apart", 4, True),
        ("all layers, fused", 1, False),
    ):
        checkpoint, out = work / "checkpoint", work / "build"
        checkpoints.write(checkpoint, shape(dry=device.dry, share=share), dtype)
        if apart:
            with products_apart():
                made = build(checkpoint, out, **options)
        else:
            made = build(checkpoint, out, **options)
        shutil.rmtree(checkpoint)
        yield {name: step_times(made, device, rate)}
        shutil.rmtree(out)
    yield {"gpu_and_cpu": compare(device, work)}


def main(argv: list[str] | None = None) -> None:
    """Print what is known so far after each part."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.studies.gpu_decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, help="a folder for 32 GB (default: a temporary one)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at tiny sizes")
    arguments = parser.parse_args(argv)
    device = Device("cuda", threads=1, quick=arguments.dry_run, dry=arguments.dry_run)
    found: dict[str, Any] = {"dry_run": arguments.dry_run}
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        for part in measure(device, Path(work)):
            found |= part
            print(text := json.dumps(found), flush=True)
            if arguments.out:
                arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
