"""Decode time against context: the full cache's grows, SnapStream's stays."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from snapexport.bench.filled import open_filled
from snapexport.bench.results import Results
from snapexport.bench.setup import Setup
from snapexport.bench.spread import Spread, rounded
from snapexport.bench.tables import Table, of_roofline, ratio, spread_ms
from snapexport.bench.turns import Case, Row, alone
from snapexport.contract.build_directory import Build

HELP = "ms per decoded token at contexts of 1K to 128K: full cache, SnapStream"
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Options:
    """steps: timed in a row, in each of the rounds. flat_rounds: of single steps (`_flat`)."""

    checkpoint: str = "small"
    contexts: tuple[int, ...] = tuple(1 << n for n in range(10, 18))
    kv_budgets: tuple[int, ...] = (1024, 4096)
    rounds: int = 10
    steps: int = 4
    flat_rounds: int = 300


DEFAULT = Options()
QUICK = Options(contexts=(512, 1024, 2048), kv_budgets=(128, 256), rounds=2, steps=2, flat_rounds=2)
CUDA = Options(
    "8b", (1024, 4096, 16384, 32768, 65536, 131072), (8192,), rounds=3, steps=16, flat_rounds=0
)


def builds(setup: Setup, options: Options) -> Iterator[tuple[int | None, Build]]:
    """The full cache (None), then each budget of SnapStream."""
    made = setup.builds(options.checkpoint)
    for budget in (None, *options.kv_budgets):
        yield budget, made.get(max(options.contexts), budget, form=setup.form)


def run(setup: Setup, options: Options, results: Results) -> None:
    """All caches at all contexts, in turn; on a GPU one cache after the other."""
    found = list(builds(setup, options))
    for together in [found] if setup.device.holds_all else [[one] for one in found]:
        at = [(n, budget) for n in options.contexts for budget, _ in together]
        todo = [
            (n, budget)
            for n, budget in at
            if not results.has("decode", {"context": n, "kv_budget": budget})
        ]
        if not todo:
            continue
        with ExitStack() as stack:
            systems = {
                budget: stack.enter_context(
                    open_filled(setup.device, build, max(options.contexts), results)
                )
                for budget, build in together
            }
            cases = [systems[b].case(n, options.steps, kv_budget=b) for n, b in todo]
            results.measure("decode", alone(cases), options.rounds, setup.device.probes())
            for budget in filter(None, systems):
                compressed = [case for case in cases if case.labels["kv_budget"] == budget]
                _flat(results, f"flat, {budget}", compressed, options.flat_rounds)


def _flat(results: Results, what: str, cases: Sequence[Case], rounds: int) -> None:
    """A step at every context, round by round.

    Each step's time is divided by the median of its round, since the machine drifts by more than
    the steps differ.
    """
    ratios: list[list[float]] = [[] for _ in cases]
    for done in range(rounds):
        order = list(enumerate(cases))
        taken = {n: case.timed() for n, case in (order if done % 2 == 0 else reversed(order))}
        middle = statistics.median(taken.values())
        for number, seconds in taken.items():
            ratios[number].append(seconds / middle)
        results.tell(what, done + 1, rounds)
    for case, found in zip(cases, ratios, strict=True):
        if found:
            results.add("flat", {**case.labels, "by_its_round": Spread.of(found).report()})


def summary(sections: Row) -> list[Row]:
    """Largest difference between SnapStream's step times, over contexts that fill its cache."""
    found = []
    for budget in dict.fromkeys(row["kv_budget"] for row in sections.get("flat", [])):
        rows = [row for row in sections["flat"] if row["kv_budget"] == budget]
        if used := [row for row in rows if row["context"] >= budget]:
            found.append({"kv_budget": budget, **_flatness(used)})
    return found


def _flatness(rows: list[Row]) -> Row:
    medians = sorted(row["by_its_round"]["median"] for row in rows)
    spread = medians[-1] - medians[0]
    return {"from": rows[0]["context"], "to": rows[-1]["context"], "spread": rounded(spread)}


def tables(report: Row) -> Iterator[Table]:
    """A row for each context, columns for each cache."""
    budgets = [None, *report["settings"]["kv_budgets"]]
    rows = {(row["context"], row["kv_budget"]): row for row in report["sections"]["decode"]}
    heads = ["context"]
    for budget in budgets:
        heads += [f"{_cache(budget)}, ms", "x of roofline"]
    heads += [f"full : {budget:,}" for budget in budgets[1:]]
    cells = []
    for at in report["settings"]["contexts"]:
        found = [rows.get((at, budget)) for budget in budgets]
        timed = [cell for row in found for cell in (spread_ms(row), of_roofline(row))]
        cells.append([f"{at:,}", *timed, *(ratio(found[0], row) for row in found[1:])])
    notes = [
        f"- {row['kv_budget']:,} slots, {row['from']:,} to {row['to']:,}: "
        f"steps differ by {row['spread']:.1%} at most"
        for row in report["summary"]
    ]
    notes += [f"- built in {row['seconds']:.1f} s" for row in report["sections"]["build"]]
    yield Table("decode by context", heads, cells, notes)


def _cache(budget: int | None) -> str:
    return f"{budget:,} slots" if budget else "full"
