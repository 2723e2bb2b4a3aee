"""Defines what a cache method does in comparisons and calibrations: the base of `measure.py`."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from snapexport.compare.loaders import Array, Feed
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import Manifest
from snapexport.runtime.engine.open_executor import BackendName

Prompts = Sequence[Sequence[int]]
Source = dict[str, Any]


@dataclass
class Texts:
    """Texts that methods measure by a build.

    prompts: their token ids. on_prompt: called when one was measured. backend: what runs the
    graphs; None: the default. attention: of those whose repetition was measured before.
    """

    build: Build
    prompts: Prompts
    on_prompt: Callable[[], None] = lambda: None
    backend: BackendName | None = None
    attention: list[dict[int, Array]] = field(default_factory=list)


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
        """Further inputs of compress, beside caches and windows of the last chunk, `out`."""
        return {}

    def feeder(self, manifest: Manifest, prompt_length: int) -> Feeder | None:
        """Return the writer of further inputs of decode's steps after a prompt."""
        return None

    def require(self, build: Build) -> None:
        """Raise UserError for a build by which nothing can be measured."""

    def least(self, build: Build) -> int:
        """Tokens of a prompt that show nothing."""
        return 0

    def texts(self, build: Build, options: GraphOptions) -> Texts | None:
        """The texts that a build measures, where the method's flags say so. Raises UserError."""
        return None

    def calibrate(self, texts: Texts, source: Source) -> tuple[bytes, Source, str]:
        """Measure texts: the content of a file, and what was found, for programs and in words.

        source: where the numbers come from, for the file. Raises UserError.
        """
        raise NotImplementedError
