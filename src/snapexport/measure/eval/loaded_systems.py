"""Loads the caches of an evaluation, each as a build of its own, on one copy of the weights.

Prompts are prefilled once and shared. Knows no task.
"""

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from snapexport.builder.derive import derive
from snapexport.builder.staging import scratch
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.errors import UserError
from snapexport.measure.eval.open_graphs import OpenGraphs
from snapexport.measure.eval.options import EvalOptions
from snapexport.measure.eval.systems import System
from snapexport.methods.extend.spec import ExtendOptions
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import PrefillForm
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import load_tokenizer


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
        options = self._build.manifest.graph_options.with_options(ExtendOptions(extend=in_blocks))
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
