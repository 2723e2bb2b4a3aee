"""Runs an evaluation: every request through every system, then the hit rates, then the report.

Knows no terminal: the records come one by one.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeVar

from snapexport.files.whole import write_whole
from snapexport.measure.eval import hit_rate
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.loaded_systems import LoadedSystems, loading
from snapexport.measure.eval.records import (
    Answer,
    Continuation,
    Journal,
    Outcome,
    Record,
    answer_rows,
    continuation_rows,
    outcome_rows,
    without_comparison,
)
from snapexport.measure.eval.requests import Cell, Request
from snapexport.measure.eval.sample import as_it_is
from snapexport.measure.eval.side_by_side import measure_answers, measure_continuations
from snapexport.measure.eval.systems import System
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import read
from snapexport.runtime.requests.request import SamplingParams

REPORT = "report.json"
Work = TypeVar("Work")


class OutOfTimeError(Exception):
    """The time is up, and a sample is left as far as it came."""


class TimeLimit:
    """Leaves out the cells for which there is no time. It counts from when it is made.

    left_out: those cells, and one that `check` cut. The time of others is judged by what a prompt
    token of the cells before took; the first one is begun in any case.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.left_out: list[Cell] = []
        self._clock, self._end = clock, clock() + seconds
        self._per_token, self._done = 0.0, 1.0

    def within(self, pending: Mapping[Cell, Work]) -> Iterator[tuple[Cell, Work]]:
        """The cells for which there is time, each with its work; the first one of each task, then
        the second ones, and so on."""
        start, tokens = self._clock(), 0.0
        for cell in _in_turn(pending):
            if tokens and self._clock() + self._per_token * cell.length > self._end:
                self.left_out.append(cell)
                continue
            self._done = 1.0
            yield cell, pending[cell]
            if self._done < 1:
                self.left_out.append(cell)
            tokens += cell.length * self._done
            self._per_token = (self._clock() - start) / tokens

    def check(self, done: float) -> None:
        """Raise OutOfTimeError after the end. done: the share of the cell's work."""
        if self._clock() > self._end:
            self._done = max(done, 0.01)
            raise OutOfTimeError

    @property
    def seconds_left_out(self) -> float:
        """The time that the left-out cells would take, at the pace of those that were run."""
        return self._per_token * sum(cell.length for cell in self.left_out)


def _in_turn(cells: Iterable[Cell]) -> list[Cell]:
    """The cells in rounds that have one of each task and length."""
    seen: Counter[tuple[str, int]] = Counter()
    rounds: list[tuple[int, Cell]] = []
    for cell in cells:
        rounds.append((seen[cell.task, cell.length], cell))
        seen[cell.task, cell.length] += 1
    return [cell for _, cell in sorted(rounds, key=lambda pair: pair[0])]


class Evaluation:
    """A grid that is run record by record. The report may be read at any time.

    records: those made so far, and those of an earlier run.
    """

    def __init__(self, grid: Grid, out: Path | None) -> None:
        """out: a directory that keeps the records."""
        self.grid, self.out = grid, out
        self.records: list[Record] = []
        self._hit_rates: list[hit_rate.HitRate] | None = None
        self._limit = TimeLimit(grid.seconds)

    def run(self) -> Iterator[Record]:
        """Every record, each once it is kept; the journal's are not made again.

        Raises UserError if `out` holds another evaluation.
        """
        self._limit = TimeLimit(self.grid.seconds)
        with loading(self.grid.build, self.grid.options) as loaded:
            journal = Journal(self.out, self.grid.fingerprint()) if self.out else None
            for record in _records(self.grid, loaded, journal, self._limit):
                self.records.append(record)
                yield record
            self._hit_rates = hit_rate.measure(self.grid, loaded)

    def report(self) -> dict[str, Any]:
        """The report of what there is; with `out`, written there too."""
        left_out = self._limit.left_out
        of_documents = continuation_rows(r for r in self.records if isinstance(r, Continuation))
        if self.grid.is_alone:
            of_documents = [without_comparison(row) for row in of_documents]
        cut = {(cell.task, cell.length, cell.seed) for cell in left_out}
        outcomes = [record for record in self.records if isinstance(record, Outcome)]
        whole = [one for one in outcomes if (one.task, one.length, one.seed) not in cut]
        report = _options(self.grid) | {
            "results": outcome_rows(whole),
            "continuations": of_documents,
            "answers": answer_rows(r for r in self.records if isinstance(r, Answer)),
            "hit_rate": [rate.report() for rate in self._hit_rates or ()],
            "complete": self._hit_rates is not None and not left_out,
            "left_out": {"samples": len(left_out), "seconds": round(self._limit.seconds_left_out)},
        }
        read_back: dict[str, Any] = json.loads(json.dumps(report))  # lists instead of tuples
        if self.out and self.records:
            write_whole(self.out / REPORT, json.dumps(read_back, indent=1) + "\n")
        return read_back


def outcomes_of(
    grid: Grid, loaded: LoadedSystems, done: Collection[Hashable], limit: TimeLimit
) -> Iterator[Outcome]:
    """One outcome after the other; those in `done` are left out.

    All systems answer a sample before the next one is made: its prompt is prefilled once.
    """
    asked = ((cell, _pending(grid, cell, done)) for cell in grid.requests.cells())
    pending = {cell: pairs for cell, pairs in asked if pairs}
    if not pending:
        return
    llms = dict(zip(grid.systems, loaded.load(grid.systems), strict=True))
    for cell, pairs in limit.within(pending):
        with suppress(OutOfTimeError):
            yield from _answers(grid, cell, pairs, llms, limit)


def _records(
    grid: Grid, loaded: LoadedSystems, journal: Journal | None, limit: TimeLimit
) -> Iterator[Record]:
    """The records that the journal has, then fresh ones."""
    known = journal.records if journal else []
    yield from known
    done = frozenset(record.key for record in known)
    fresh = chain(_of_documents(grid, loaded, done), outcomes_of(grid, loaded, done, limit))
    yield from journal.record(fresh) if journal else fresh


def _of_documents(
    grid: Grid, loaded: LoadedSystems, done: Collection[Hashable]
) -> Iterator[Continuation | Answer]:
    requests = grid.requests
    if requests.prompts or requests.instructions:
        llms = loaded.load(grid.systems)
        pairs = zip(grid.systems, llms, strict=True)
        executors = {system: llm.executor for system, llm in pairs}
        yield from measure_continuations(requests.prompts, executors, done)
        yield from measure_answers(requests.instructions, executors, requests.tokenizer, done)


def _pending(grid: Grid, cell: Cell, done: Collection[Hashable]) -> list[tuple[System, str]]:
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
    limit: TimeLimit,
) -> Iterator[Outcome]:
    """Raises OutOfTimeError between two steps of any model."""
    sample = grid.requests.sample(cell)
    params = SamplingParams(max_tokens=sample.max_tokens, stop=sample.stop)
    for number, (system, mode) in enumerate(pairs):
        request = grid.requests.request(sample, cell, mode)

        def check(count: int, number: int = number, whole: int = len(request.prompt)) -> None:
            limit.check((number + count / (whole + 1)) / len(pairs))

        text, token_ids = _answer(llms[system], request, params, check)
        yield Outcome(
            system.name,
            system.slots,
            mode,
            cell.task,
            cell.length,
            cell.seed,
            cell.depth,
            sample.score(text),
            sample.score_first(token_ids),
            sample.score_rest(token_ids),
            text,
            sample.reference,
        )


def _answer(
    llm: LLM, request: Request, params: SamplingParams, check: Callable[[int], None]
) -> tuple[str, list[int]]:
    """The text and its tokens. check: called between steps with the prompt's tokens done."""
    later = [request.continuation] if request.continuation else None
    limits = llm.executor.limits
    (asked,) = read([request.prompt], params, llm.tokenizer, limits, later)
    text, token_ids = "", list[int]()
    with closing(llm.stream(asked, on_prefill=check)) as deltas:
        for delta in deltas:
            text += delta.text
            token_ids += delta.token_ids
            check(len(request.prompt))
    return text, token_ids


def _options(grid: Grid) -> dict[str, Any]:
    """Describe the evaluation: build, options and systems."""
    return {
        "build": str(grid.build.directory),
        "model": grid.build.manifest.model.architecture,
        "options": asdict(grid.options)
        | {
            "lengths": grid.requests.lengths,
            "tasks": grid.options.chosen_tasks,
            "documents": [document.name for document in grid.requests.documents],
            "haystack": [document.name for document in grid.requests.haystack],
            "chat": grid.requests.frame is not as_it_is,
        },
        "systems": [system.report() for system in grid.systems],
        "compared": not grid.is_alone,
    }
