"""Runs an evaluation: every request through every system, then the hit rates, then the report.

Knows no terminal: a callback receives each outcome.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from snapexport.measure.eval import answers, continuations, hit_rate
from snapexport.measure.eval.answers import Answer
from snapexport.measure.eval.continuations import Continuation
from snapexport.measure.eval.grid import Cell, Grid
from snapexport.measure.eval.outcomes import Journal, Key, Outcome, results
from snapexport.measure.eval.sample import as_it_is
from snapexport.measure.eval.systems import LoadedSystems, System, loading
from snapexport.runtime.engine.batch_executor import BatchExecutor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

REPORT = "report.json"

Record = Outcome | Continuation | Answer


class Evaluation:
    """A grid that is run record by record. The report may be read at any time.

    outcomes, continuations, answers: those made so far, and those of an earlier run.
    """

    def __init__(self, grid: Grid, out: Path | None) -> None:
        """out: a directory that keeps the records."""
        self.grid, self.out = grid, out
        self.outcomes: list[Outcome] = []
        self.continuations: list[Continuation] = []
        self.answers: list[Answer] = []
        self._hit_rates: list[hit_rate.HitRate] | None = None

    def run(self) -> Iterator[Record]:
        """Every record, each once it is kept; the journal's are not made again.

        Raises UserError if `out` holds another evaluation.
        """
        with loading(self.grid.build, self.grid.options.threads) as loaded:
            journal = Journal(self.out, self.grid.fingerprint()) if self.out else None
            for record in _resumed(self.grid, loaded, journal):
                self._keep(record)
                yield record
            self._hit_rates = hit_rate.measure(self.grid, loaded)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.outcomes or self.continuations or self.answers)

    def report(self) -> dict[str, Any]:
        """The report of what there is; with `out`, written there too."""
        report = _options(self.grid) | {
            "results": results(self.outcomes),
            "continuations": continuations.results(self.continuations),
            "answers": answers.results(self.answers),
            "hit_rate": [rate.report() for rate in self._hit_rates or ()],
            "complete": self._hit_rates is not None,
        }
        read_back: dict[str, Any] = json.loads(json.dumps(report))  # lists instead of tuples
        if self.out:
            (self.out / REPORT).write_text(_in_lines(read_back))
        return read_back

    def _keep(self, record: Record) -> None:
        match record:
            case Outcome():
                self.outcomes.append(record)
            case Continuation():
                self.continuations.append(record)
            case Answer():
                self.answers.append(record)


def run(grid: Grid, out: Path | None, show: Callable[[Record], None]) -> dict[str, Any]:
    """Run a whole grid, `show` each record, and return the report. Raises UserError."""
    evaluation = Evaluation(grid, out)
    for record in evaluation.run():
        show(record)
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


def _resumed(grid: Grid, loaded: LoadedSystems, journal: Journal | None) -> Iterator[Record]:
    """The records that the journal has, then fresh ones."""
    if journal is None:
        yield from _continuations(grid, loaded)
        yield from _answers_about_documents(grid, loaded)
        yield from outcomes_of(grid, loaded)
        return
    yield from journal.continuations
    yield from journal.answers
    yield from journal.outcomes
    forced = frozenset(one.key for one in journal.continuations)
    yield from journal.record(_continuations(grid, loaded, forced))
    written = frozenset(one.key for one in journal.answers)
    yield from journal.record(_answers_about_documents(grid, loaded, written))
    done = frozenset(outcome.key for outcome in journal.outcomes)
    yield from journal.record(outcomes_of(grid, loaded, done))


def _continuations(
    grid: Grid, loaded: LoadedSystems, done: frozenset[continuations.Key] = frozenset()
) -> Iterator[Continuation]:
    """One record after the other; those in `done` are left out."""
    if grid.prompts:
        yield from continuations.measure(grid.prompts, _executors(grid, loaded), done)


def _answers_about_documents(
    grid: Grid, loaded: LoadedSystems, done: frozenset[answers.Key] = frozenset()
) -> Iterator[Answer]:
    """One record after the other; those in `done` are left out."""
    if grid.instructions:
        executors = _executors(grid, loaded)
        yield from answers.measure(grid.instructions, executors, grid.requests.tokenizer, done)


def _executors(grid: Grid, loaded: LoadedSystems) -> dict[System, BatchExecutor]:
    llms = loaded.load(grid.systems)
    return {one: llm.executor for one, llm in zip(grid.systems, llms, strict=True)}


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


def _in_lines(report: Mapping[str, Any]) -> str:
    """The report as JSON, with a line for each row of its lists."""
    return "{" + ",\n".join(f"{json.dumps(key)}: {_rows(report[key])}" for key in report) + "}\n"


def _rows(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def _options(grid: Grid) -> dict[str, Any]:
    """What was evaluated."""
    return {
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
    }
