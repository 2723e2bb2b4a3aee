"""Asks TensorRT for RTX about every graph of a matrix of 144 builds: an hour on two cores.

    python -m tools.studies.rtx_matrix [WORD ...]

Architectures by policies, and then options one at a time. With words: the builds alone whose name
has one of them. Prints a line a build, and ends with 1 if a graph was refused.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from snapexport.builder import build
from snapexport.files.dtypes import DTYPES
from snapexport.graphs.functions.vote import STAGES
from tests import trace_cache
from tests.oracle import checkpoints
from tests.rtx.library import ask_all
from tests.store import Store

VOTED: dict[str, Any] = {"L_recent": 12, "K": 8, "L_obs": 4}
POLICIES: dict[str, dict[str, Any]] = {
    "snapstream": VOTED | {"pool_kernel": 5, "baseline": True, "extend": True},
    "streaming": {"L_recent": 12},
    "sage": {"L_recent": 12, "K": 8},
    "snapkv": VOTED | {"L_recent": 16},
    "full": {},
}
ALL_SLIDING = ("mistral-sliding",)
POLICIES_OF_SLIDING: dict[str, dict[str, Any]] = {"snapstream": {"baseline": True}, "full": {}}
"""Their caches have the window's size: there is nothing to choose."""
COMMON: dict[str, Any] = {"L_max": 64, "prefill_chunk": 24, "batch": 2, "target": "tensorrt-rtx"}

LAYOUTS: dict[str, dict[str, Any]] = {
    "single shot": {"prefill_chunk": 64},
    "own weights": {"share_weights": False},
    "smaller batches": {"batch": 8, "decode_batches": (1, 4)},
    "one batch slot": {"batch": 1},
    "smaller prefills": {"prefill_capacities": (24,)},
    "top tokens": {"top_tokens": 50},
    "extend": {"extend": True, "short_chunks": (16,)},
    "baseline": {"baseline": True},
    "pyramid": {"budget": "pyramid"},
    "for TensorRT": {"target": "tensorrt"},
    "for TensorRT, single shot": {"target": "tensorrt", "prefill_chunk": 64},
}
FAMILIES = ("llama", "qwen3-sliding", "gemma2")
"""Architectures of unlike attention: each is built with every layout."""
HEADS = (8, 20, 40, 64, 128, 256)
LENGTHS = (4096, 32768, 131072)


@dataclass(frozen=True)
class Combination:
    """One build. changes: of the checkpoint's config."""

    name: str
    architecture: str
    options: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)


def combinations() -> Iterator[Combination]:
    """All builds, each once."""
    yield from _policies()
    yield from _layouts()
    yield from _votes()
    yield from _sizes()


def _policies() -> Iterator[Combination]:
    """Each architecture with each policy. Types take turns with the architectures."""
    for row, architecture in enumerate(checkpoints.ARCHITECTURES):
        dtype = DTYPES[row % len(DTYPES)]
        policies = POLICIES_OF_SLIDING if architecture in ALL_SLIDING else POLICIES
        for policy, options in policies.items():
            own = options | {"policy": policy, "dtype": dtype}
            yield Combination(f"{architecture}, {policy}, {dtype}", architecture, own)


def _layouts() -> Iterator[Combination]:
    for row, architecture in enumerate(FAMILIES):
        dtype = DTYPES[(row + 1) % len(DTYPES)]
        for layout, options in LAYOUTS.items():
            own = VOTED | {"dtype": dtype} | options
            yield Combination(f"{architecture}, {layout}, {own['dtype']}", architecture, own)
    drafts = {"mtp": True, "dtype": "bf16"}
    yield Combination("deepseek-v3, drafts", "deepseek-v3", VOTED | drafts, {"mtp": True})


def _votes() -> Iterator[Combination]:
    for stage, choices in STAGES.items():
        for choice in choices:
            own = VOTED | {stage: choice, "dtype": "fp16"}
            yield Combination(f"llama, {stage} {choice}", "llama", own)


def _sizes() -> Iterator[Combination]:
    for head_dim in HEADS:
        own = VOTED | {"dtype": "bf16", "baseline": True}
        yield Combination(f"llama, heads of {head_dim}", "llama", own, {"head_dim": head_dim})
    for length in LENGTHS:
        own = {"L_max": length, "kv_budget": length // 4, "prefill_chunk": 512, "dtype": "bf16"}
        large = {"head_dim": 128, "max_position_embeddings": length}
        name = f"llama, {length:,} positions"
        yield Combination(name, "llama", own | {"baseline": True}, large)


def refused(combination: Combination, folder: Path) -> tuple[int, list[str]]:
    """How many graphs a build has, and a line for each that the library refuses."""
    model = checkpoints.make(combination.architecture, folder / "model", **combination.changes)
    made = build(model, folder / "build", **COMMON | combination.options)
    graphs = list(made.manifest.graphs)
    answers = ask_all([made.graph(graph) for graph in graphs], ("8.9",))
    lines = [
        f"{graph}: {' '.join(answer.errors)[:300]}"
        for graph, answer in zip(graphs, answers, strict=True)
        if not answer.accepted
    ]
    return len(graphs), lines


def main(words: list[str]) -> int:
    """Ask about the builds whose name has one of `words`, or all; returns the exit status."""
    with TemporaryDirectory() as traces, trace_cache.kept_in(Store(Path(traces))):
        return _ask(words)


def _ask(words: list[str]) -> int:
    asked = faults = 0
    for one in combinations():
        if words and not any(word in one.name for word in words):
            continue
        with TemporaryDirectory() as folder:
            count, lines = refused(one, Path(folder))
        asked, faults = asked + count, faults + len(lines)
        print(f"{one.name}: {count} graphs, {len(lines)} refused", *lines, sep="\n  ", flush=True)
    print(f"{asked} graphs, {faults} refused")
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
