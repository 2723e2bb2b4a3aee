"""Measures what sparse prefill saves: chunks at some past lengths, with and without a budget.

All builds are open at once and take turns. A prompt's time is the sum of its chunks': a chunk that
attends to everything takes a time linear in its past, a sparse one always the same. A prompt's last
chunk attends to everything.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.measure.bench.results import Table
from snapexport.measure.bench.turns import (
    Case,
    Row,
    singles,
    six_digits,
    timer,
)
from snapexport.methods.sparse_prefill.spec import SparsePrefillOptions
from tools.studies.speed.experiments.overhead import Prefill, integral
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

NOTE = (
    "prompts are integrated from chunks that were timed over a cache of random numbers; the "
    "compress step is left out"
)


@dataclass(frozen=True)
class Options:
    """budgets: positions that a sparse chunk attends to. pasts: past lengths of timed chunks.

    L_max: the longest prompt whose time is computed; a 4th and a 16th of it are the others.
    """

    checkpoint: str = "qwen-thin"
    L_max: int = 131072
    budgets: tuple[int, ...] = (2048, 8192)
    pasts: tuple[int, ...] = (0, 16384, 65536, 130560)
    kv_budget: int = 1024
    rounds: int = 3


def builds(setup: Setup, options: Options) -> Iterator[tuple[int, Build]]:
    """A build for each budget; of budget 0, everything is attended to."""
    made = setup.builds(options.checkpoint)
    for budget in (0, *options.budgets):
        form = setup.form.with_options(SparsePrefillOptions(prefill_budget=budget))
        yield budget, made.get(options.L_max, options.kv_budget, form=form)


def run(setup: Setup, options: Options, results: Results) -> None:
    """Time the chunks of all builds in turn."""
    results.note(NOTE)
    found = list(builds(setup, options))
    with ExitStack() as stack:
        cases = [
            case
            for budget, build in found
            for case in _cases(
                Prefill(build, stack.enter_context(setup.device.opened(build))), budget, options
            )
        ]
        results.measure("prefill", singles(cases), options.rounds, setup.device.probes())


def _cases(prefill: Prefill, budget: int, options: Options) -> Iterator[Case]:
    """Sparse chunks alone of a build with a budget."""
    size = prefill.build.manifest.prefill_chunk
    for past in options.pasts:
        if past >= budget:
            labels = {"budget": budget, "past": past, "chunk": size}
            run = partial(prefill.chunk, past)
            yield Case("prefill", labels, timer(run), warm=past == options.pasts[0])


def summary(sections: Row) -> list[Row]:
    """Each prompt's seconds by budget, and their share of those without one."""
    chunks = sections.get("prefill") or []
    whole = integral([row for row in chunks if not row["budget"]])
    if whole is None:
        return []
    size, longest = chunks[0]["chunk"], max(row["past"] for row in chunks) + chunks[0]["chunk"]
    found = []
    for budget in sorted({row["budget"] for row in chunks} - {0}):
        times = [row["seconds"]["median"] for row in chunks if row["budget"] == budget]
        one = float(np.median(times))
        for prompt in (longest // 16, longest // 4, longest):
            # As in the full one up to N + C tokens, and at the end.
            seconds = whole(min(prompt, budget + size))
            if prompt > budget + size:
                count = (prompt - budget) // size - 2
                seconds += count * one + whole(prompt) - whole(prompt - size)
            found.append(
                {"prompt": prompt, "budget": budget}
                | {"full_seconds": six_digits(whole(prompt)), "seconds": six_digits(seconds)}
                | {"share": six_digits(seconds / whole(prompt))}
            )
    return found


def tables(report: Row) -> Iterator[Table]:
    """A row for each prompt and budget."""
    columns = {
        "prompt": "{prompt:,}",
        "budget": "{budget:,}",
        "all attended to, s": "{full_seconds:.1f}",
        "sparse, s": "{seconds:.1f}",
        "share": "{share:.2f}",
    }
    yield Table.of("what sparse prefill saves", report["summary"], columns, report["notes"])


SPARSE_PREFILL = Experiment(
    help="prompts with and without --prefill-budget, 8K to 128K",
    cpu=Options(),
    quick=Options(L_max=2048, budgets=(256,), pasts=(0, 512, 1984), kv_budget=256, rounds=2),
    run=run,
    builds=builds,
    summary=summary,
    tables=tables,
)
