"""Runs an evaluation: every request through every system, then the hit rates, then the report.

Knows no terminal: a callback receives each outcome.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from snapexport.eval import hit_rate
from snapexport.eval.grid import Cell, Grid
from snapexport.eval.outcomes import Journal, Key, Outcome, results
from snapexport.eval.systems import LoadedSystems, System, loading
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams

REPORT = "report.json"


def run(grid: Grid, out: Path | None, tell: Callable[[Outcome], None]) -> dict[str, Any]:
    """Run the grid, `tell` each outcome, and return the report; with `out`, write it there too.

    Outcomes that `out` already holds of the same evaluation are not run again. Raises UserError.
    """
    outcomes: list[Outcome] = []
    with loading(grid.build, grid.options.threads) as loaded:
        for outcome in _resumed(grid, loaded, out):
            outcomes.append(outcome)
            tell(outcome)
        hit_rates = hit_rate.measure(grid, loaded)
    report = _report(grid, outcomes, hit_rates)
    if out:
        (out / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    return report


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


def _resumed(grid: Grid, loaded: LoadedSystems, out: Path | None) -> Iterator[Outcome]:
    """The outcomes that `out` has, then fresh ones."""
    if out is None:
        yield from outcomes_of(grid, loaded)
        return
    journal = Journal(out, grid.fingerprint())
    yield from journal.outcomes
    done = frozenset(outcome.key for outcome in journal.outcomes)
    yield from journal.record(outcomes_of(grid, loaded, done))


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
    grid: Grid, outcomes: list[Outcome], hit_rates: list[hit_rate.HitRate]
) -> dict[str, Any]:
    report = {
        "build": str(grid.build.directory),
        "model": grid.build.manifest.model.architecture,
        "options": asdict(grid.options) | {"lengths": grid.requests.lengths},
        "systems": [system.report() for system in grid.systems],
        "results": results(outcomes),
        "hit_rate": [rate.report() for rate in hit_rates],
    }
    read_back: dict[str, Any] = json.loads(json.dumps(report))  # lists instead of tuples
    return read_back
