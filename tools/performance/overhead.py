"""What compression adds to prefill: the hand-over beside the time to the first token.

Long prompts are not prefilled: their time is the sum of their chunks', on the line through chunks
that were timed at some past lengths (`affine`). Short ones are, which shows how far off that is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from snapexport.bench.contender import chunks
from snapexport.bench.costs import Costs
from snapexport.bench.hand_over import HandOver
from snapexport.bench.spread import rounded
from snapexport.contract.build_directory import Build
from snapexport.runtime.open_executor import open_executor

from .affine import Affine
from .filled import fill
from .report import Report
from .setup import Setup
from .turns import Case, Row, clocked

HELP = "the hand-over's share of prefill, prompts of 1K to 128K"

PAPER_SHARE = 0.0252 + 0.0032
"""SnapStream's Table 4, 128K: the SnapKV kernel and the ring buffer's, of a layer's prefill."""

MLX_SHARE = 1 - 134.23 / 155.42
"""The SnapKV change to mlx-lm, 95,075 tokens: of prefill with it what there is not without."""

NOTES = (
    "prefill of prompts that are not `prefilled` is integrated: chunks were timed at some past "
    "lengths over a cache of random numbers, and a line drawn through their medians",
    "the hand-over runs by itself, on random keys and queries",
)


@dataclass(frozen=True)
class Options:
    """prefilled: prompts whose prefill is run. pasts: where chunks are timed. A ratio of slots."""

    prompts: tuple[int, ...] = (1024, 4096, 16384, 32768, 65536, 131072)
    prefilled: tuple[int, ...] = (1024, 4096, 16384)
    pasts: tuple[int, ...] = (0, 4096, 16384, 32768, 65536, 130560)
    compression: int = 4
    rounds: int = 2
    hand_over_rounds: int = 5


DEFAULT = Options()
QUICK = Options(
    prompts=(256, 512, 1024, 2048),
    prefilled=(256, 512, 1024),
    pasts=(0, 512, 1024, 1984),
    hand_over_rounds=2,
)


def run(setup: Setup, options: Options, report: Report) -> None:
    """Prefill first, then one build's hand-over after the other."""
    report.notes.extend(NOTES)
    builds, longest = setup.builds(), max(options.prompts)
    build = builds.get(longest, longest // options.compression)
    report.measure("prefill", list(_prefills(build, options, setup.threads)), options.rounds)
    for L_max in options.prompts:
        lengths = options.prompts if L_max == longest else (L_max,)
        build = builds.get(L_max, L_max // options.compression)
        hand_over = HandOver(build, setup.threads)
        cases = [_hand_over(build, hand_over, length) for length in lengths]
        report.measure("hand_over", cases, options.hand_over_rounds)
        del hand_over, cases  # 5 GiB of the longest


def _prefills(build: Build, options: Options, threads: int) -> Iterator[Case]:
    """Whole prompts, and single chunks at their past lengths. Only the first warms up."""
    prefill = Prefill(build, threads)
    costs, chunk = Costs.of(build, full_cache=False), build.manifest.prefill_chunk
    for length in options.prefilled:
        run, work = partial(prefill.prompt, length), costs.prefill(length)
        warm = length == options.prefilled[0]
        yield Case({"prompt": length}, clocked(run), warm=warm, work=work)
    for past in options.pasts:
        run = partial(prefill.chunk, past)
        yield Case({"past": past, "chunk": chunk}, clocked(run), warm=False)


class Prefill:
    """An engine's prefill over a cache of random numbers, with tokens that it has never seen."""

    def __init__(self, build: Build, threads: int) -> None:
        self._engine = open_executor(build, threads=threads)
        self._rng = np.random.default_rng(0)
        assert self._engine.prompt_cache is not None, "no chunk would be the whole prompt"
        fill({name: one.host for name, one in self._engine.prompt_cache.buffers.items()})

    def prompt(self, length: int) -> None:
        """All chunks; the last one hands over."""
        tokens = self._tokens(length)
        for part in chunks(length, self._engine.limits.prefill_chunk):
            self._engine.prefill(0, tokens[part.start : part.end], part.start, length)

    def chunk(self, past: int) -> None:
        """One that is not its prompt's last."""
        size = self._engine.limits.prefill_chunk
        self._engine.prefill(0, self._tokens(size), past, past + size + 1)

    def _tokens(self, count: int) -> list[int]:
        drawn: list[int] = self._rng.integers(0, self._engine.limits.vocab_size, count).tolist()
        return drawn


def _hand_over(build: Build, hand_over: HandOver, length: int) -> Case:
    labels = {
        "prompt": length,
        "L_max": build.manifest.geometry.L_max,
        "slots": build.manifest.geometry.layers[0].cache_slots,
    }
    work = Costs.of(build, full_cache=False).hand_over(length)
    return Case(labels, clocked(partial(_once, hand_over, length)), work=work)


def _once(hand_over: HandOver, length: int) -> None:
    hand_over.set_length(length)
    hand_over.whole.run()


def summary(report: Row) -> list[Row]:
    """For each hand-over the prefill beside it: run, or integrated; and the former's share."""
    if not report["hand_over"]:
        return []
    line, chunk = _line(report)
    longest = max(row["L_max"] for row in report["hand_over"])
    within = {
        row["prompt"]: row["seconds"]["median"]
        for row in report["hand_over"]
        if row["L_max"] == longest
    }
    # A prompt that was run has the longest build's hand-over in it.
    prefilled = {
        row["prompt"]: row["seconds"]["median"] - within[row["prompt"]]
        for row in report["prefill"]
        if row.get("prompt") in within
    }
    found = []
    for row in report["hand_over"]:
        prompt, seconds = row["prompt"], row["seconds"]["median"]
        integrated = line.prompt(prompt, chunk)
        prefill = prefilled.get(prompt, integrated) + seconds
        found.append(
            {
                "prompt": prompt,
                "L_max": row["L_max"],
                "slots": row["slots"],
                "hand_over_seconds": seconds,
                "prefill_seconds": rounded(prefill),
                "prefilled": prompt in prefilled,
                "share": rounded(seconds / prefill),
                "integrated_off_by": rounded((integrated + seconds) / prefill - 1),
            }
        )
    return found


def _line(report: Row) -> tuple[Affine, int]:
    timed = [row for row in report["prefill"] if "past" in row]
    medians = [row["seconds"]["median"] for row in timed]
    return Affine.through([row["past"] for row in timed], medians), timed[0]["chunk"]
