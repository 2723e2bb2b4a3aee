"""Decode time against context: the full cache's grows, SnapStream's stays."""

from dataclasses import dataclass

from snapexport.bench.spread import rounded

from .checkpoint import Name
from .filled import NOTE, FilledEngine
from .report import Report
from .setup import Setup
from .turns import Row

HELP = "ms per decoded token at contexts of 1K to 128K: full cache, SnapStream"


@dataclass(frozen=True)
class Options:
    """steps: timed in a row, in each of the rounds. flat_rounds: of SnapStream's by themselves."""

    checkpoint: Name = "small"
    contexts: tuple[int, ...] = tuple(1 << n for n in range(10, 18))
    kv_budgets: tuple[int, ...] = (1024, 4096)
    rounds: int = 12
    steps: int = 4
    flat_rounds: int = 40


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
    if options.flat_rounds:
        # A few per cent are to be told apart: nothing else comes between these.
        compressed = [case for case in cases if case.labels["kv_budget"] is not None]
        report.measure("flat", compressed, options.flat_rounds)


def summary(report: Row) -> list[Row]:
    """How flat SnapStream's time is, from where all its slots are used: (max - min) / median."""
    found = []
    for budget in report["options"]["kv_budgets"]:
        rows = [r for r in report.get("flat", []) if r["kv_budget"] == budget]
        if used := [row for row in rows if row["context"] >= budget]:
            found.append({"kv_budget": budget, **_flatness(used)})
    return found


def _flatness(rows: list[Row]) -> Row:
    medians = sorted(row["seconds"]["median"] for row in rows)
    spread = (medians[-1] - medians[0]) / medians[len(medians) // 2]
    return {
        "from": rows[0]["context"],
        "to": rows[-1]["context"],
        "spread": rounded(spread),
    }
