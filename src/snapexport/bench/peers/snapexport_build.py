"""A build of snapexport."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapexport.bench.filled import FilledSystem
    from snapexport.bench.peers.process import Scene, Variant
    from snapexport.contract.manifest import Quantization

PACKAGES = ("snapexport", "onnxruntime")


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Caches by weights. prepack: a second copy of the weights, as the libraries have that lay them
    out anew. Those of 4 bits always are."""
    from snapexport.bench.builds import IN_INT8, PLAIN
    from snapexport.bench.peers.process import Variant
    from snapexport.contract.graph_options import GraphOptions

    caches = {
        "SnapStream": (scene.kv_budget, PLAIN, False),
        "SnapStream, prepacked": (scene.kv_budget, PLAIN, True),
        "SnapStream in fp16": (scene.kv_budget, GraphOptions(cache_dtype="fp16"), False),
        "SnapStream in int8": (scene.kv_budget, IN_INT8, False),
        "full": (None, PLAIN, False),
    }
    weights: dict[Quantization | None, int] = {None: 32, "int4": 4}
    for quantization, bits in weights.items():
        for cache, (budget, form, prepack) in caches.items():
            if (prepack and quantization) or bits not in scene.bits:
                continue
            build = scene.builds(quantization).get(max(scene.contexts), budget, form=form)
            directory = str(build.directory.absolute())
            options = {"build": directory, "threads": scene.threads, "prepack": prepack}
            name, python = f"snapexport {quantization or 'fp32'}, {cache}", Path(sys.executable)
            yield Variant(name, bits, python, __file__, options, scene.contexts)


def make(build: str, threads: int, prepack: bool = False) -> "Snapexport":
    """A build with caches of random numbers."""
    from snapexport.bench.filled import FilledSystem
    from snapexport.bench.systems import load
    from snapexport.contract.build_directory import Build

    system = load(Path(build), baseline=False, threads=threads, prepack=prepack)
    return Snapexport(FilledSystem(Build.open(Path(build)), system.executor))


class Snapexport:
    """Its executor, without a scheduler."""

    def __init__(self, filled: "FilledSystem") -> None:
        from snapexport.bench.systems import ExecutorSystem

        self._filled = filled
        self._system = ExecutorSystem(filled.executor)
        self._context = 1

    def first_token(self, tokens: Sequence[int]) -> None:
        self._system.prefill(0, tokens)

    def fill(self, context: int) -> None:
        self._filled.refill()
        self._context = context

    def step(self) -> None:
        self._filled.step(self._context, 1)
