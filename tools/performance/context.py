"""Decode time against context: the full cache's grows, SnapStream's stays."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.bench.spread import Spread, rounded

from .checkpoint import Name
from .filled import NOTE, FilledEngine
from .report import Report
from .setup import Setup
from .turns import Case, Row

HELP = "ms per decoded token at contexts of 1K to 128K: full cache, SnapStream"


@dataclass(frozen=True)
class Options:
    """steps: timed in a row, in each of the rounds. flat_rounds: of single steps (`_flat`)."""

    checkpoint: Name = "small"
    contexts: tuple[int, ...] = tuple(1 << n for n in range(10, 18))
    kv_budgets: tuple[int, ...] = (1024, 4096)
    rounds: int = 10
    steps: int = 4
    flat_rounds: int = 300


DEFAULT = Options()
QUICK = Options(contexts=(512, 1024, 2048), kv_budgets=(128, 256), rounds=2, steps=2, flat_rounds=2)


def run(setup: Setup, options: Options, report: Report) -> None:
    """All caches at all contexts, in turn."""
    report.notes.append(NOTE)
    builds, L_max = setup.builds(options.checkpoint), max(options.contexts)
    engines = {
        budget: FilledEngine(builds.get(L_max, budget), setup.threads)
        for budget in (None, *options.kv_budgets)
    }
    cases = [
        engine.case(context, options.steps, kv_budget=budget)
        for context in options.contexts
        for budget, engine in engines.items()
    ]
    report.measure("decode", cases, options.rounds)
    for budget in options.kv_budgets:
        compressed = [case for case in cases if case.labels["kv_budget"] == budget]
        _flat(report, f"flat, {budget}", compressed, options.flat_rounds)


def _flat(report: Report, section: str, cases: Sequence[Case], rounds: int) -> None:
    """A step at every context, round by round: the machine drifts by more than they differ.

    So what is kept of a step is its time by the median of its round.
    """
    ratios: list[list[float]] = [[] for _ in cases]
    for done in range(rounds):
        order = list(enumerate(cases))
        taken = {n: case.timed() for n, case in (order if done % 2 == 0 else reversed(order))}
        middle = statistics.median(taken.values())
        for number, seconds in taken.items():
            ratios[number].append(seconds / middle)
        report.tell(section, done + 1, rounds)
    report.sections["flat"] += [
        {**case.labels, "by_its_round": Spread.of(found).report()}
        for case, found in zip(cases, ratios, strict=True)
        if found
    ]


def summary(report: Row) -> list[Row]:
    """How flat SnapStream's time is, from where all its slots are used: the largest difference."""
    found = []
    for budget in report["options"]["kv_budgets"]:
        rows = [r for r in report.get("flat", []) if r["kv_budget"] == budget]
        if used := [row for row in rows if row["context"] >= budget]:
            found.append({"kv_budget": budget, **_flatness(used)})
    return found


def _flatness(rows: list[Row]) -> Row:
    medians = sorted(row["by_its_round"]["median"] for row in rows)
    spread = medians[-1] - medians[0]
    return {
        "from": rows[0]["context"],
        "to": rows[-1]["context"],
        "spread": rounded(spread),
    }
