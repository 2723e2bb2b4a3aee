"""One call for the command: run everything, measure everything, write the plain commands."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnxruntime
import transformers
from polygraphy.logger import G_LOGGER

from snapexport.contract.build_directory import Build
from snapexport.eval.accuracy.backends import Backend
from snapexport.eval.accuracy.difference import Difference, differences, run_all
from snapexport.eval.accuracy.graph_runner import GraphRunner
from snapexport.eval.accuracy.reference import ReferenceRunner
from snapexport.eval.accuracy.reference_model import reference_model
from snapexport.eval.accuracy.repeat import write_repeat
from snapexport.eval.accuracy.sequence import feed
from snapexport.exporter.quiet import quiet


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' logs: ONNX Runtime remarks on every cache that it has to copy."""
    onnxruntime.set_default_logger_severity(3)
    transformers.utils.logging.disable_progress_bar()
    with quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


def compare_build(
    build: Build,
    checkpoint: str | None,
    prompts: list[list[int]],
    steps: int,
    out: Path,
    runners: Mapping[str, Backend] | None = None,
) -> tuple[list[Difference], Path]:
    """Differences of all runners over all prompts, and the commands that repeat the last.

    runners: by name, what runs the build's graphs; ONNX Runtime if none are given.
    """
    with _quiet():
        reference = ReferenceRunner(reference_model(build, checkpoint))
        feeds = [feed(prompt, reference.continuation(prompt, steps)) for prompt in prompts]
        graphs = _graphs(build, runners or {})
        everyone = [reference, *graphs]
        results = run_all(everyone, feeds)
        found = differences(build, everyone, feeds, results)
        commands = write_repeat(out, build, graphs, results[reference.name][-1])
    return found, commands


def _graphs(build: Build, runners: Mapping[str, Backend]) -> list[GraphRunner]:
    """Full cache and compressed cache, on each runner; its name is told where one was named."""
    backends: dict[str, Backend | None] = {f" ({name})": one for name, one in runners.items()}
    baselines = [True, False] if build.has_baseline else [False]
    return [
        GraphRunner(build, baseline, backend, remark)
        for baseline in baselines
        for remark, backend in (backends or {"": None}).items()
    ]
