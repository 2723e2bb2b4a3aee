"""A build of snapexport."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapexport.contract.manifest import Quantization
    from snapexport.files.dtypes import DType
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("snapexport", "onnxruntime")


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Each cache with each kind of weights.

    Prepacked: with a second copy of the weights, as the libraries have that rearrange theirs.
    Weights of 4 bits always are. Caches of a dtype of their own stand beside fp32 alone.
    """
    from snapexport.contract.graph_options import GraphOptions
    from tools.studies.speed.builds import IN_INT8, PLAIN
    from tools.studies.speed.peers.process import Variant

    caches = {
        "SnapStream": (scene.kv_budget, PLAIN, False),
        "SnapStream, prepacked": (scene.kv_budget, PLAIN, True),
        "SnapStream in fp16": (scene.kv_budget, GraphOptions(cache_dtype="fp16"), False),
        "SnapStream in int8": (scene.kv_budget, IN_INT8, False),
        "full": (None, PLAIN, False),
    }
    weights: dict[int, tuple[Quantization | None, DType]] = {
        32: (None, "fp32"),
        16: (None, "fp16"),
        4: ("int4", "fp32"),
    }
    for bits in scene.bits:
        quantization, dtype = weights[bits]
        builds = scene.builds(quantization, dtype)
        for cache, (budget, form, prepack) in caches.items():
            if (prepack and bits != 32) or (form != PLAIN and dtype != "fp32"):
                continue
            build = builds.get(max(scene.contexts), budget, form=form)
            directory = str(build.directory.absolute())
            options = {"build": directory, "threads": scene.threads, "prepack": prepack}
            name, python = f"snapexport {quantization or dtype}, {cache}", Path(sys.executable)
            yield Variant(name, bits, python, __file__, options, scene.contexts)


def make(build: str, threads: int, prepack: bool = False) -> "Snapexport":
    """A build with caches of random numbers."""
    sys.path.append(str(Path(__file__).parents[4]))  # a worker starts without the repository's root
    return Snapexport(Path(build), threads, prepack)


class Snapexport:
    """Its executor, without a scheduler."""

    def __init__(self, build: Path, threads: int, prepack: bool) -> None:
        from snapexport.contract.build_directory import Build
        from snapexport.measure.bench.systems import load
        from tools.studies.speed.filled import FilledSystem

        self._system = load(build, threads=threads, prepack=prepack)
        self._filled = FilledSystem(Build.open(build), self._system.executor)
        self._context = 1

    def first_token(self, tokens: Sequence[int]) -> None:
        self._system.prefill(0, tokens)

    def fill(self, context: int) -> None:
        self._filled.refill()
        self._context = context

    def step(self) -> None:
        self._filled.step(self._context, 1)

    def answer(self, tokens: Sequence[int], count: int) -> list[int]:
        first = self._system.prefill(0, tokens)
        return [first, *(self._system.decode(1)[0] for _ in range(count - 1))]
