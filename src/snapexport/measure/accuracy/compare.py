"""Compares a build with transformers: runs all systems, and measures their differences."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import transformers
from polygraphy.comparator import Comparator
from polygraphy.logger import G_LOGGER

from snapexport.contract.build_directory import Build
from snapexport.exporter.quiet import quiet
from snapexport.measure.accuracy.difference import Difference, differences
from snapexport.measure.accuracy.graph_loader import GraphLoader
from snapexport.measure.accuracy.graph_runner import GraphRunner
from snapexport.measure.accuracy.reference import ReferenceRunner, reference_model
from snapexport.measure.accuracy.sequence import feed


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the libraries."""
    transformers.utils.logging.disable_progress_bar()
    with quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


def compare_build(
    build: Build,
    checkpoint: str | None,
    prompts: list[list[int]],
    steps: int,
    loaders: Mapping[str, GraphLoader] | None = None,
) -> list[Difference]:
    """Differences of all systems over all prompts.

    loaders: of the build's graphs, by backend; ONNX Runtime's if none are given.
    """
    with _quiet():
        reference = ReferenceRunner(*reference_model(build, checkpoint))
        feeds = [feed(prompt, reference.continuation(prompt, steps)) for prompt in prompts]
        reference.release()
        runners = [reference, *_graphs(build, loaders or {}, reference.never_sampled)]
        # Polygraphy's own loop: one runner after the other, each over all sequences.
        results = Comparator.run(runners, data_loader=feeds, streaming=False)
        return differences(build, runners, feeds, results)


def _graphs(
    build: Build, loaders: Mapping[str, GraphLoader], never_sampled: Sequence[int]
) -> list[GraphRunner]:
    """Full cache and compressed cache on each backend, named where a backend was given."""
    named: dict[str, GraphLoader | None] = {f" ({name})": one for name, one in loaders.items()}
    baselines = [True, False] if build.has_baseline else [False]
    return [
        GraphRunner(build, baseline, loader, remark, never_sampled)
        for baseline in baselines
        for remark, loader in (named or {"": None}).items()
    ]
