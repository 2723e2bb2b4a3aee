"""Defines what a cache method does in comparisons and calibrations: the base of `measure.py`."""

from collections.abc import MutableMapping
from typing import Any, Protocol

from snapexport.compare.loaders import Array, Feed
from snapexport.contract.manifest import Manifest


class Prefilled(Protocol):
    """Graphs that took a prompt, for a method that runs more of them (`compare/loop.py`)."""

    @property
    def manifest(self) -> Manifest:
        """The build's."""

    def run_chunk(self, out: Feed, tokens: Array, start: int) -> Feed:
        """Run a whole chunk of tokens [C] at a position, on the caches that another left."""

    def run_on(self, graph: str, out: Feed, given: Feed) -> Feed:
        """Run a further graph on the caches that a chunk left, and what else it takes."""


class Feeder(Protocol):
    """Writes further inputs of a decode step."""

    def feed(self, arrays: MutableMapping[str, Any]) -> None:
        """Write them beside those that are there."""


class MethodMeasure:
    """Does nothing. A method overrides what it does."""

    def votes(self, graphs: Prefilled, out: Feed, prompt: Array) -> Feed:
        """What the compress step takes beside the caches and windows of the last chunk, `out`."""
        return {}

    def feeder(self, manifest: Manifest, prompt_length: int) -> Feeder | None:
        """What writes further inputs of decode's steps after a prompt."""
        return None
