"""Measures the time that compression adds to prefill: the compress step as a share of TTFT.

The executor runs the compress step, with its own session, options and buffers. On a CPU, the time
of a long prompt is computed from chunks timed at some past lengths. Short prompts are also run,
which shows the error of this.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.pieces import CHUNK, Piece
from snapexport.measure.bench.costs import Costs
from snapexport.measure.bench.results import Column, Table
from snapexport.measure.bench.turns import Case, Row, singles, six_digits, timer
from snapexport.runtime.engine.executor import Executor
from tools.studies.speed.filled import fill_prompt
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

PAPER_SHARE = 0.0252 + 0.0032
"""SnapStream's Table 4, 128K: shares of a layer's prefill of the SnapKV and ring buffer kernels."""

MLX_SHARE = 1 - 134.23 / 155.42
"""The SnapKV change to mlx-lm, 95,075 tokens: its share of prefill."""

INTEGRATED = (
    "prefill of prompts that are not `prefilled` is integrated: chunks were timed at some past "
    "lengths over a cache of random numbers, and a line drawn through their medians"
)
NOTE = (
    "the compress step is run by the runtime's executor, over a cache of random numbers and the "
    "queries of a chunk that was prefilled"
)


@dataclass(frozen=True)
class Options:
    """prefilled: prompts whose prefill is run. pasts: past lengths of timed chunks.

    compression: positions / cache slots; kv_budget: cache slots instead. own_lengths: also make a
    build for each length of prompts, beside the one for the longest.
    """

    prompts: tuple[int, ...] = (1024, 4096, 16384, 32768, 65536, 131072)
    prefilled: tuple[int, ...] = (1024, 4096, 16384)
    pasts: tuple[int, ...] = (0, 4096, 16384, 32768, 65536, 130560)
    checkpoint: str = "small"
    compression: int = 4
    kv_budget: int | None = None
    own_lengths: bool = True
    rounds: int = 2
    compress_rounds: int = 5


def builds(setup: Setup, options: Options) -> Iterator[Build]:
    """The build for the longest prompts comes last."""
    made, longest = setup.builds(options.checkpoint), max(options.prompts)
    for L_max in sorted(options.prompts) if options.own_lengths else [longest]:
        budget = options.kv_budget or L_max // options.compression
        yield made.get(L_max, budget, form=setup.form)


def run(setup: Setup, options: Options, results: Results) -> None:
    """Time each build's compress step, and prefill with the longest build."""
    if options.pasts:
        results.note(INTEGRATED)
    results.note(NOTE)
    found, probes = list(builds(setup, options)), setup.device.probes()
    for build in found:
        is_longest = build is found[-1]
        lengths = options.prompts if is_longest else (build.manifest.geometry.L_max,)
        # The executor is opened for what is missing alone.
        todo = [n for n in lengths if not results.has("compress", _labels(build, n))]
        prefills = is_longest and not results.sections.get("prefill")
        if not todo and not prefills:
            continue
        with setup.device.opened(build) as executor:
            prefill = Prefill(build, executor)
            if prefills:
                cases = singles(list(prefill.cases(options)))
                results.measure("prefill", cases, options.rounds, probes)
            prefill.chunk(0)  # real queries, and a cache that any prompt's end can be told of
            cases = singles([prefill.compress_case(length) for length in todo])
            results.measure("compress", cases, options.compress_rounds, probes)


class Prefill:
    """An executor's prefill over a cache of random numbers, with tokens that it has never seen."""

    def __init__(self, build: Build, executor: Executor) -> None:
        self.build, self.executor = build, executor
        self.costs = Costs.of(build, full_cache=False)
        self._rng = np.random.default_rng(0)
        fill_prompt(executor)

    def cases(self, options: Options) -> Iterator[Case]:
        """Whole prompts, and single chunks at their past lengths. Only the first warms up."""
        for length in options.prefilled:
            run, work = partial(self.prompt, length), self.costs.prefill(length)
            warm = length == options.prefilled[0]
            yield Case("prefill", {"prompt": length}, timer(run), warm=warm, work=work)
        for past in options.pasts:
            labels = {"past": past, "chunk": self.build.manifest.prefill_chunk}
            yield Case("prefill", labels, timer(partial(self.chunk, past)), warm=False)

    def compress_case(self, length: int) -> Case:
        step = timer(partial(self.executor.compress, 0, length))
        work = self.costs.compress(length)
        return Case("compress", _labels(self.build, length), step, work=work)

    def prompt(self, length: int) -> None:
        """All chunks, and the compress step."""
        self.executor.prefill_prompt(0, self._tokens(length))
        self.executor.fill_slot()

    def chunk(self, past: int) -> None:
        """One that is not its prompt's last."""
        size = self.executor.limits.prefill_chunk
        self.executor.take(0, self._tokens(past + size + 1), Piece(CHUNK, past, past + size, size))

    def _tokens(self, count: int) -> list[int]:
        drawn: list[int] = self._rng.integers(0, self.executor.limits.vocab_size, count).tolist()
        return drawn


def _labels(build: Build, length: int) -> Row:
    geometry = build.manifest.geometry
    slots = geometry.layers[0].cache_slots
    return {"prompt": length, "L_max": geometry.L_max, "slots": slots}


def summary(sections: Row) -> list[Row]:
    """Each compress step with its prefill, run or computed, and its share."""
    steps = sections.get("compress") or []
    if not steps or not sections.get("prefill"):
        return []
    longest = max(row["L_max"] for row in steps)
    within = {r["prompt"]: r["seconds"]["median"] for r in steps if r["L_max"] == longest}
    # A prompt that was run has the longest build's compress step in it.
    prefilled = {
        row["prompt"]: row["seconds"]["median"] - within[row["prompt"]]
        for row in sections["prefill"]
        if row.get("prompt") in within
    }
    integrate = integral([row for row in sections["prefill"] if "past" in row])
    found = []
    for row in steps:
        prompt, seconds = row["prompt"], row["seconds"]["median"]
        integrated = integrate(prompt) if integrate else None
        prefill = prefilled.get(prompt, integrated)
        if prefill is None:  # the run was cut before that prompt
            continue
        whole = prefill + seconds
        off_by = None if integrated is None else six_digits((integrated + seconds) / whole - 1)
        found.append(
            {name: row[name] for name in ("prompt", "L_max", "slots")}
            | {
                "compress_seconds": seconds,
                "prefill_seconds": six_digits(whole),
                "prefilled": prompt in prefilled,
                "share": six_digits(seconds / whole),
                "integrated_off_by": off_by,
            }
        )
    return found


def integral(chunks: list[Row]) -> Callable[[int], float] | None:
    """From a prompt's length to the seconds of its chunks; None if fewer than two were timed.

    A chunk's tokens attend to all tokens before it, so it takes start + slope * past seconds: the
    line with the least squared relative errors, so that all chunks count alike.
    """
    if len(chunks) < 2:
        return None
    pasts, seconds = zip(*((row["past"], row["seconds"]["median"]) for row in chunks), strict=True)
    slope, start = np.polyfit(pasts, seconds, 1, w=1 / np.asarray(seconds)).tolist()
    size = chunks[0]["chunk"]

    def integrate(length: int) -> float:
        assert length % size == 0, (length, size)
        return sum(float(start + slope * past) for past in range(0, length, size))

    return integrate


def tables(report: Row) -> Iterator[Table]:
    """A row for each prompt and build."""
    longest = max((row["L_max"] for row in report["summary"]), default=0)
    found = sorted(report["summary"], key=lambda row: (row["L_max"] == longest, row["prompt"]))
    columns: dict[str, Column] = {
        "prompt": "{prompt:,}",
        "L_max": "{L_max:,}",
        "slots": "{slots:,}",
        "prefill, s": "{prefill_seconds:.2f}",
        "of it run": lambda row: "yes" if row["prefilled"] else "no",
        "compress, ms": lambda row: f"{1e3 * row['compress_seconds']:.1f}",
        "of prefill": "{share:.2%}",
    }
    notes = [
        f"- {row['prompt']:,} tokens: integrated prefill is off by "
        f"{row['integrated_off_by']:+.1%} from the one that was run"
        for row in found
        if row["prefilled"] and row["L_max"] == longest and row["integrated_off_by"] is not None
    ]
    notes.append(
        f"- others: SnapStream's Table 4 {PAPER_SHARE:.1%} (128K), "
        f"the SnapKV change to mlx-lm {MLX_SHARE:.1%} (95K)"
    )
    yield Table.of("what compression adds to prefill", found, columns, notes)


_LENGTHS = Options().prompts
OVERHEAD = Experiment(
    help="the compress step's share of prefill, prompts of 1K to 128K",
    cpu=Options(),
    quick=Options(
        prompts=(256, 512, 1024, 2048),
        prefilled=(256, 512, 1024),
        pasts=(0, 512, 1024, 1984),
        compress_rounds=2,
    ),
    cuda=Options(_LENGTHS, _LENGTHS, (), "8b", kv_budget=8192, own_lengths=False, rounds=1),
    run=run,
    builds=builds,
    summary=summary,
    tables=tables,
)
