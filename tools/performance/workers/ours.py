"""A build of snapexport."""

from collections.abc import Sequence
from pathlib import Path

from snapexport.bench.contender import EngineContender
from snapexport.contract.build_directory import Build

from ..filled import FilledEngine

PACKAGES = ("snapexport", "onnxruntime")


def make(build: str, threads: int, prepack: bool = False) -> "Snapexport":
    """A build with caches of random numbers."""
    return Snapexport(FilledEngine(Build.open(Path(build)), threads, prepack))


class Snapexport:
    """Its engine, without a scheduler."""

    def __init__(self, filled: FilledEngine) -> None:
        self._filled = filled
        self._contender = EngineContender(filled.engine)
        self._context = 1

    def first_token(self, tokens: Sequence[int]) -> None:
        self._contender.prefill(0, tokens)

    def fill(self, context: int) -> None:
        self._filled.refill()
        self._context = context

    def step(self) -> None:
        self._filled.step(self._context, 1)
