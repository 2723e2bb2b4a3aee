"""Loads the caches of an evaluation, each as a build of its own, on one copy of the weights.

Prompts are prefilled once and shared. Graphs are opened when they run, and as many are held as
memory allows: each may copy the weights. Equal graphs are opened once. Knows no task.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from snapexport.builder.derive import derive
from snapexport.builder.engines.memory import host_available
from snapexport.builder.staging import scratch
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.contract.memory import weights_bytes
from snapexport.errors import UserError
from snapexport.measure.eval.systems import System
from snapexport.measure.options import EvalOptions
from snapexport.methods import table
from snapexport.runtime.engine.backend import Buffers, GraphBackend, Memory, Work
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet, PrefillForm
from snapexport.runtime.engine.open_executor import maker_of, open_executor
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import load_tokenizer

_WITHOUT_WEIGHTS = "compress"
_DECODE, _OF_PROMPTS = 1, 2
"""Fewest graphs of one name that are held: caches decode one after the other, and their prompts are
prefilled with a window for the vote and without."""
_PART = 4
"""The part of the free memory that the copies of weights of one name's graphs may take."""


@dataclass
class _Opened:
    """A graph's backend, and what runs it over each of its buffers."""

    backend: GraphBackend
    works: dict[int, Work] = field(default_factory=dict)


class OpenGraphs:
    """Executors of several builds on one device.

    A graph that was let go is opened again when it runs. On a GPU all use one stream.
    """

    def __init__(self, running: Mapping[str, Any]) -> None:
        """running: arguments of `open_executor`."""
        self._running, self._free = running, host_available() or 0
        self._device: Any = None
        self._opened: dict[str, dict[str, _Opened]] = defaultdict(dict)
        self.count = count()

    def executor(
        self, build: Build, prefill: PrefillForm = "chunks", prompt_cache: PromptCache | None = None
    ) -> Executor:
        """An executor by `open_executor`. Raises UserError, and its graphs do when they run."""
        return open_executor(
            build, **self._running, prefill=prefill, prompt_cache=prompt_cache, make=self._make
        )

    def most_held(self, manifest: Manifest, graph: GraphName) -> int:
        """The number of graphs of a name that are held at once; 0: all, as weights are mapped."""
        if self._running["backend"] == "onnxruntime" and not manifest.holds_integers:
            return 0
        fewest = _DECODE if graph == "decode" else _OF_PROMPTS
        on_gpu = self._running["backend"] == "onnxruntime-cuda"
        free = 0 if on_gpu or self._is_little_left else self._free
        return max(fewest, free // _PART // weights_bytes(manifest))

    @property
    def _is_little_left(self) -> bool:
        """Whether less than half of the free memory is left: a graph may take several times its
        weights."""
        return (host_available() or self._free) < self._free // 2

    def open(self, build: Build, graph: GraphName, make: Callable[[], GraphBackend]) -> _Opened:
        """A graph, which is now the last that is let go."""
        same = self._opened[graph]
        sha256 = build.manifest.graphs[graph].sha256
        found, most = same.pop(sha256, None), self.most_held(build.manifest, graph)
        while found is None and 0 < most <= len(same):
            del same[next(iter(same))]
        same[sha256] = found or _Opened(make())
        return same[sha256]

    def close(self) -> None:
        """Let go of all graphs, and free a GPU's memory."""
        self._opened.clear()
        if self._device:
            self._device.close()

    def _make(self, name: str) -> Callable[..., GraphBackend]:
        make = maker_of(name)
        if name == "onnxruntime-cuda":
            from snapexport.runtime.ort.devices import Cuda

            self._device = self._device or Cuda()
            make = partial(make, device=self._device)

        def on_demand(build: Build, graphs: GraphSet, **settings: object) -> GraphBackend:
            return _OnDemand(self, build, partial(make, build, graphs, **settings))

        return on_demand


class _OnDemand:
    """A `GraphBackend` that opens graphs with weights when they run."""

    def __init__(self, graphs: OpenGraphs, build: Build, make: Callable[[], GraphBackend]) -> None:
        self._graphs, self._build, self._make = graphs, build, make
        self._own: GraphBackend | None = make()
        self.binds_rows: bool = self._own.binds_rows
        self.memory: Memory = self._own.memory

    def bind(self, graph: GraphName, buffers: Buffers) -> Work:
        if graph == _WITHOUT_WEIGHTS:
            assert self._own, "it was not closed"
            return self._own.bind(graph, buffers)
        number = next(self._graphs.count)

        def run() -> None:
            opened = self._graphs.open(self._build, graph, self._make)
            if number not in opened.works:
                opened.works[number] = opened.backend.bind(graph, buffers)
            opened.works[number]()

        return run

    def capture(self, graph: GraphName, work: Work) -> Work | None:
        """Nothing is captured: a graph that is opened again has other addresses."""
        return None

    def close(self) -> None:
        """The device is all executors', so its memory stays."""
        self._own = None


class LoadedSystems:
    """Systems that share weights and prefilled prompts. `close` frees a GPU's memory."""

    def __init__(self, build: Build, directory: Path, options: EvalOptions) -> None:
        self._build = build
        self._directory = directory
        self._graphs = OpenGraphs(options.running)
        self.close = self._graphs.close
        self._tokenizer = load_tokenizer(build.directory)
        self._prompt_cache: PromptCache | None = None
        self._executors: dict[Hashable, Executor] = {}

    def load(self, systems: Sequence[System]) -> list[LLM]:
        """One LLM for each system, in order. A system is opened once."""
        return [self._load(one, one.geometry, in_blocks=one.in_blocks) for one in systems]

    def watch(self, geometry: CacheGeometry) -> LLM:
        """An LLM whose executor shows the queries of each decoded token."""
        return self._load(geometry, geometry, with_queries=True)

    def _load(
        self,
        key: Hashable,
        geometry: CacheGeometry,
        with_queries: bool = False,
        in_blocks: bool = False,
    ) -> LLM:
        if key not in self._executors:
            form: PrefillForm = "blocks" if in_blocks else "chunks"
            build = self._derive(geometry, with_queries, in_blocks)
            executor = self._graphs.executor(build, form, self._prompt_cache)
            self._executors[key], self._prompt_cache = executor, executor.prompt_cache
        return LLM.from_executor(self._executors[key], self._tokenizer)

    def _derive(self, geometry: CacheGeometry, with_queries: bool, in_blocks: bool) -> Build:
        """The build of a cache; without traces there is only the build itself."""
        if not self._build.manifest.traces:
            return self._build
        out = self._directory / str(len(self._executors))
        options = self._build.manifest.graph_options.with_options(*table.in_blocks(in_blocks))
        return derive(
            self._build, geometry, out, options, with_queries=with_queries, link_weights=True
        )


@contextmanager
def loading(build: Build, options: EvalOptions) -> Iterator[LoadedSystems]:
    """Systems in a hidden directory beside the build, where its weights can be hard-linked.

    Raises UserError where they can't: a copy for each system would take gigabytes. Nothing is made
    of a build without traces.
    """
    if not build.manifest.traces:
        with closing(LoadedSystems(build, build.directory, options)) as loaded:
            yield loaded
        return
    beside = build.directory.resolve()
    folder = beside.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder} cannot be written, and the graphs of other caches go beside the build",
            "make it writable, or move the build to where you can write",
        )
    with scratch(beside) as directory:
        _require_links(build, directory)
        with closing(LoadedSystems(build, directory, options)) as loaded:
            yield loaded


def _require_links(build: Build, directory: Path) -> None:
    weights, probe = build.directory / build.manifest.weights[0].file, directory / "probe"
    try:
        os.link(weights, probe)
    except OSError as error:
        raise UserError(
            f"the weights cannot be linked (hard links): {error.strerror}: {weights}",
            "copy the build to a file system with hard links: otherwise each cache would copy them",
        ) from None
    probe.unlink()
