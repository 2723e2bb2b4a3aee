"""Decode time against context: the full cache's grows, SnapStream's stays."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from snapexport.measure.bench.results import Table, of_roofline
from snapexport.measure.bench.turns import Case, Row, six_digits, spread
from tools.studies.speed.filled import Step, measure_steps
from tools.studies.speed.record import Results, spread_ms
from tools.studies.speed.setup import Experiment, Setup


@dataclass(frozen=True)
class Options:
    """steps: timed in a row, in each of the rounds. flat_rounds: of single steps (`_flat`)."""

    checkpoint: str = "small"
    contexts: tuple[int, ...] = tuple(1 << n for n in range(10, 18))
    kv_budgets: tuple[int, ...] = (1024, 4096)
    rounds: int = 10
    steps: int = 4
    flat_rounds: int = 300


def builds(setup: Setup, options: Options) -> Iterator[list[Step]]:
    """The steps of the full cache (None), then of each budget of SnapStream."""
    made, longest = setup.builds(options.checkpoint), max(options.contexts)
    for budget in (None, *options.kv_budgets):
        build = made.get(longest, budget, form=setup.form)
        yield [Step(build, context, {"kv_budget": budget}) for context in options.contexts]


def run(setup: Setup, options: Options, results: Results) -> None:
    """All caches at all contexts, in turn; on a GPU one cache after the other."""
    caches = list(builds(setup, options))
    by_context = [step for steps in zip(*caches, strict=True) for step in steps]

    def flat(cases: list[Case]) -> None:
        for budget in options.kv_budgets:
            compressed = [case for case in cases if case.labels["kv_budget"] == budget]
            _flat(results, f"flat, {budget}", compressed, options.flat_rounds)

    for steps in [by_context] if setup.device.holds_all else caches:
        measure_steps(setup.device, results, steps, options.steps, options.rounds, flat)


def _flat(results: Results, what: str, cases: Sequence[Case], rounds: int) -> None:
    """A step at every context, round by round.

    Each step's time is divided by the median of its round, since the machine drifts by more than
    the steps differ.
    """
    ratios: dict[Case, list[float]] = {case: [] for case in cases}
    for done in range(rounds if cases else 0):
        taken = {case: case.timed() for case in (cases if done % 2 == 0 else reversed(cases))}
        middle = statistics.median(taken.values())
        for case, seconds in taken.items():
            ratios[case].append(seconds / middle)
        results.progress(what, done + 1, rounds)
    for case, found in ratios.items():
        if found:
            results.add("flat", {**case.labels, "by_its_round": spread(found)})


def summary(sections: Row) -> list[Row]:
    """Largest difference between SnapStream's step times, over contexts that fill its cache."""
    found = []
    flat = sections.get("flat", [])
    for budget in dict.fromkeys(row["kv_budget"] for row in flat):
        rows = [row for row in flat if row["kv_budget"] == budget <= row["context"]]
        if rows:
            medians = [row["by_its_round"]["median"] for row in rows]
            ends = {"from": rows[0]["context"], "to": rows[-1]["context"]}
            difference = six_digits(max(medians) - min(medians))
            found.append({"kv_budget": budget, **ends, "spread": difference})
    return found


def tables(report: Row) -> Iterator[Table]:
    """A row for each context, columns for each cache."""
    budgets = [None, *report["settings"]["kv_budgets"]]
    rows = {(row["context"], row["kv_budget"]): row for row in report["sections"]["decode"]}
    heads = ["context"]
    for budget in budgets:
        heads += [f"{budget:,} slots, ms" if budget else "full, ms", "x of roofline"]
    heads += [f"full : {budget:,}" for budget in budgets[1:]]
    cells = []
    for context in report["settings"]["contexts"]:
        full, *others = found = [rows.get((context, budget)) for budget in budgets]
        timed = [cell for row in found for cell in (spread_ms(row), of_roofline(row))]
        cells.append([f"{context:,}", *timed, *(_ratio(full, row) for row in others)])
    notes = [
        f"- {row['kv_budget']:,} slots, {row['from']:,} to {row['to']:,}: "
        f"steps differ by {row['spread']:.1%} at most"
        for row in report["summary"]
    ]
    notes += [f"- built in {row['seconds']:.1f} s" for row in report["sections"]["build"]]
    yield Table("decode by context", heads, cells, notes)


def _ratio(one: Row | None, other: Row | None) -> str:
    if not one or not other:
        return ""
    return f"{one['seconds']['median'] / other['seconds']['median']:.2f}"


CONTEXT = Experiment(
    help="ms per decoded token at contexts of 1K to 128K: full cache, SnapStream",
    cpu=Options(),
    quick=Options(
        contexts=(512, 1024, 2048), kv_budgets=(128, 256), rounds=2, steps=2, flat_rounds=2
    ),
    cuda=Options(
        "8b", (1024, 4096, 16384, 32768, 65536, 131072), (8192,), rounds=3, steps=16, flat_rounds=0
    ),
    run=run,
    builds=builds,
    summary=summary,
    tables=tables,
)


def run_and_build(setup: Setup, options: Options, results: Results) -> None:
    """Decode in turn, then build once more."""
    run(setup, options, results)
    results.add("build", {"seconds": setup.builds(options.checkpoint).seconds()})


SCALE1B = replace(
    CONTEXT,
    help="decode at 1K and 32K with 1.2 G parameters, and what building takes",
    cpu=Options("1b", contexts=(1024, 32768), rounds=5, steps=3, flat_rounds=0),
    quick=Options("1b", (512, 1024), kv_budgets=(128,), rounds=2, steps=2, flat_rounds=0),
    cuda=None,
    run=run_and_build,
    builds=None,
    summary=None,
)
