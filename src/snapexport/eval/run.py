"""Runs an evaluation: every request through every system, then the hit rates, then the report.

Knows no terminal: a callback receives each outcome.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from snapexport.eval import continuations, hit_rate
from snapexport.eval.continuations import Continuation
from snapexport.eval.grid import Cell, Grid
from snapexport.eval.outcomes import Journal, Key, Outcome, results
from snapexport.eval.sample import as_it_is
from snapexport.eval.systems import LoadedSystems, System, loading
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams

REPORT = "report.json"


class Evaluation:
    """A grid that is run record by record. The report may be read at any time.

    outcomes, continuations: those made so far, and those of an earlier run.
    """

    def __init__(self, grid: Grid, out: Path | None) -> None:
        """out: a directory that keeps the records."""
        self.grid, self.out = grid, out
        self.outcomes: list[Outcome] = []
        self.continuations: list[Continuation] = []
        self._hit_rates: list[hit_rate.HitRate] | None = None

    def run(self) -> Iterator[Outcome | Continuation]:
        """Every record, each once it is kept; the journal's are not made again.

        Raises UserError if `out` holds another evaluation.
        """
        with loading(self.grid.build, self.grid.options.threads) as loaded:
            journal = Journal(self.out, self.grid.fingerprint()) if self.out else None
            for record in _resumed(self.grid, loaded, journal):
                if isinstance(record, Continuation):
                    self.continuations.append(record)
                else:
                    self.outcomes.append(record)
                yield record
            self._hit_rates = hit_rate.measure(self.grid, loaded)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.outcomes or self.continuations)

    def report(self) -> dict[str, Any]:
        """The report of what there is; with `out`, written there too."""
        report = _report(self.grid, self.outcomes, self.continuations, self._hit_rates)
        if self.out:
            (self.out / REPORT).write_text(json.dumps(report, indent=1) + "\n")
        return report


def run(
    grid: Grid, out: Path | None, tell: Callable[[Outcome | Continuation], None]
) -> dict[str, Any]:
    """Run a whole grid, `tell` each record, and return the report. Raises UserError."""
    evaluation = Evaluation(grid, out)
    for record in evaluation.run():
        tell(record)
    return evaluation.report()


def outcomes_of(
    grid: Grid, loaded: LoadedSystems, done: frozenset[Key] = frozenset()
) -> Iterator[Outcome]:
    """One outcome after the other; those in `done` are left out.

    All systems answer a sample before the next one is made: its prompt is prefilled once.
    """
    pending = {cell: _pending(grid, cell, done) for cell in grid.requests.cells()}
    if not any(pending.values()):
        return
    llms = dict(zip(grid.systems, loaded.load(grid.systems), strict=True))
    for cell, pairs in pending.items():
        if pairs:
            yield from _answers(grid, cell, pairs, llms)


def _resumed(
    grid: Grid, loaded: LoadedSystems, journal: Journal | None
) -> Iterator[Outcome | Continuation]:
    """The records that the journal has, then fresh ones."""
    if journal is None:
        yield from _continuations(grid, loaded)
        yield from outcomes_of(grid, loaded)
        return
    yield from journal.continuations
    yield from journal.outcomes
    known = frozenset(one.key for one in journal.continuations)
    yield from journal.record(_continuations(grid, loaded, known))
    done = frozenset(outcome.key for outcome in journal.outcomes)
    yield from journal.record(outcomes_of(grid, loaded, done))


def _continuations(
    grid: Grid, loaded: LoadedSystems, done: frozenset[continuations.Key] = frozenset()
) -> Iterator[Continuation]:
    """One record after the other; those in `done` are left out."""
    if not grid.prompts:
        return
    llms = loaded.load(grid.systems)
    executors = {one: llm.executor for one, llm in zip(grid.systems, llms, strict=True)}
    yield from continuations.measure(grid.prompts, executors, done)


def _pending(grid: Grid, cell: Cell, done: frozenset[Key]) -> list[tuple[System, str]]:
    """The systems and modes whose outcome for a cell is missing."""
    return [
        (system, mode)
        for system, mode in product(grid.systems, grid.options.modes)
        if (system.name, system.slots, mode, cell.task, cell.length, cell.seed) not in done
    ]


def _answers(
    grid: Grid,
    cell: Cell,
    pairs: Sequence[tuple[System, str]],
    llms: Mapping[System, LLM],
) -> Iterator[Outcome]:
    sample = grid.requests.sample(cell)
    params = SamplingParams(max_tokens=sample.max_tokens, stop=sample.stop)
    for system, mode in pairs:
        request = grid.requests.request(sample, cell, mode)
        later = [request.continuation] if request.continuation else None
        (completion,) = llms[system].generate([request.prompt], params, later)
        yield Outcome(
            system.name,
            system.slots,
            mode,
            cell.task,
            cell.length,
            cell.seed,
            cell.depth,
            sample.score(completion.text),
            sample.score_first(completion.token_ids),
            sample.score_rest(completion.token_ids),
            completion.text,
            sample.reference,
        )


def _report(
    grid: Grid,
    outcomes: list[Outcome],
    found: list[Continuation],
    hit_rates: list[hit_rate.HitRate] | None,
) -> dict[str, Any]:
    """hit_rates: None if they were not reached."""
    report = {
        "build": str(grid.build.directory),
        "model": grid.build.manifest.model.architecture,
        "options": asdict(grid.options)
        | {
            "lengths": grid.requests.lengths,
            "tasks": grid.options.chosen_tasks,
            "documents": [one.name for one in grid.requests.documents],
            "chat": grid.requests.frame is not as_it_is,
        },
        "systems": [system.report() for system in grid.systems],
        "results": results(outcomes),
        "continuations": continuations.results(found),
        "hit_rate": [rate.report() for rate in hit_rates or ()],
        "complete": hit_rates is not None,
    }
    read_back: dict[str, Any] = json.loads(json.dumps(report))  # lists instead of tuples
    return read_back
