"""Loads every contestant as a build of its own, on one copy of the weights and one prompt cache."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from snapexport.builder.derive import derive
from snapexport.builder.staging import scratch
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.geometry import CacheGeometry
from snapexport.eval.contestants import Contestant
from snapexport.runtime.executor import Executor
from snapexport.runtime.llm import LLM
from snapexport.runtime.open_executor import open_executor
from snapexport.runtime.prompt_cache import PromptCache
from snapexport.runtime.prompts import load_tokenizer


class Arena:
    """Contestants that share what they can: a prompt is prefilled once, whoever asks first."""

    def __init__(self, build: Build, directory: Path, threads: int | None) -> None:
        self._build = build
        self._directory = directory
        self._threads = threads
        self._tokenizer = load_tokenizer(build.directory)
        self._prompt_cache: PromptCache | None = None
        self._derived: dict[tuple[CacheGeometry, bool], Build] = {}

    def load(self, contestants: Sequence[Contestant]) -> list[LLM]:
        """One LLM for each, in order."""
        return [self._load(self._engine(contestant.geometry)) for contestant in contestants]

    def watch(self, geometry: CacheGeometry) -> tuple[LLM, Executor]:
        """An LLM whose engine shows the queries of each decoded token."""
        engine = self._engine(geometry, with_queries=True)
        return self._load(engine), engine

    def _engine(self, geometry: CacheGeometry, with_queries: bool = False) -> Executor:
        build = self._build_of(geometry, with_queries)
        engine = open_executor(
            build,
            backend="onnxruntime",
            threads=self._threads,
            prompt_cache=self._prompt_cache,
        )
        self._prompt_cache = engine.prompt_cache
        return engine

    def _build_of(self, geometry: CacheGeometry, with_queries: bool) -> Build:
        """Each is made once: the hit rate's come after the trials'."""
        key = geometry, with_queries
        if key not in self._derived:
            out = self._directory / str(len(self._derived))
            self._derived[key] = derive(self._build, geometry, out, with_queries=with_queries)
        return self._derived[key]

    def _load(self, engine: Executor) -> LLM:
        return LLM.from_executor(engine, self._tokenizer)


@contextmanager
def arena(build: Build, threads: int | None) -> Iterator[Arena]:
    """An arena in a hidden directory beside the build, where its weights can be linked.

    Raises UserError where they can't: a copy for each contestant would be gigabytes.
    """
    beside = build.directory.resolve()
    _require_writable(beside.parent)
    with scratch(beside) as directory:
        _require_links(build, directory)
        yield Arena(build, directory, threads)


def _require_writable(directory: Path) -> None:
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(
            f"{directory} cannot be written: the other caches' graphs are made beside the build",
            "make it writable, or move the build to where you can write",
        )


def _require_links(build: Build, directory: Path) -> None:
    weights, probe = build.directory / build.manifest.weights[0].file, directory / "probe"
    try:
        os.link(weights, probe)
    except OSError as error:
        raise UserError(
            f"the weights cannot be linked (hard links): {error.strerror}: {weights}",
            "copy the build to a file system of your own that has hard links: each cache would "
            "copy the weights otherwise",
        ) from None
    probe.unlink()
