"""Throughput at equal memory: as many slots as one size of decode cache has room for."""

from dataclasses import dataclass

from snapexport.bench.spread import rounded
from snapexport.contract.graph_options import GraphOptions
from snapexport.runtime.memory import cache_bytes

from .builds import IN_INT8, PLAIN, Builds
from .filled import NOTE, FilledEngine
from .report import Report
from .setup import Setup
from .turns import Row

HELP = "largest batch and tokens/s of caches of the same bytes, prompts of 16K to 128K"

PAPER = (
    # prompt, slots and tokens/s of the full cache, and of SnapStream at 4:1
    (32768, 64, 1832, 256, 7903),
    (65536, 32, 908, 128, 3928),
    (131072, 16, 434, 64, 1832),
)
"""SnapStream's Table 5: DeepSeek-R1 on 16 SN40L sockets."""


@dataclass(frozen=True)
class Cache:
    """compression: positions of the prompt to a slot; None: the full cache's own graphs. times: how
    many fit in for a full one."""

    name: str
    compression: int | None
    times: int
    form: GraphOptions = PLAIN


FULL = Cache("full", None, 1)
# SnapStream's graphs with a slot for each position: as much is read, by the others' operator.
WHOLE = Cache("1/1", 1, 1)
QUARTER = Cache("1/4", 4, 4)
# Its scales come on top: 0.1 to 0.8 % of its bytes.
QUARTER_IN_INT8 = Cache("1/4, int8", 4, 16, IN_INT8)
SIXTEENTH = Cache("1/16", 16, 16)


@dataclass(frozen=True)
class Options:
    """positions: of the full cache, in the memory that all have. 131,072: 4 GiB of `small`."""

    positions: int = 131072
    prompts: tuple[int, ...] = (16384, 32768, 65536, 131072)
    caches: tuple[Cache, ...] = (FULL, WHOLE, QUARTER, QUARTER_IN_INT8, SIXTEENTH)
    rounds: int = 5
    steps: int = 2


DEFAULT = Options()
QUICK = Options(positions=2048, prompts=(1024, 2048), caches=(FULL, WHOLE, QUARTER), rounds=2)


def run(setup: Setup, options: Options, report: Report) -> None:
    """One length of prompts after the other; its caches are loaded together, and take turns."""
    report.notes.append(NOTE)
    for prompt in options.prompts:
        engines = [
            _filled(setup.builds(), options, prompt, cache, setup.threads)
            for cache in options.caches
        ]
        cases = [
            engine.case(
                prompt,
                options.steps,
                cache=cache.name,
                cache_bytes=cache_bytes(engine.build.manifest).decode,
            )
            for engine, cache in zip(engines, options.caches, strict=True)
        ]
        report.measure("decode", cases, options.rounds)
        del engines, cases  # before the next ones are loaded: 4 GiB each


def _filled(
    builds: Builds, options: Options, prompt: int, cache: Cache, threads: int
) -> FilledEngine:
    """The largest batch that the memory has room for."""
    batch = options.positions * cache.times // prompt
    kv_budget = prompt // cache.compression if cache.compression else None
    return FilledEngine(builds.get(prompt, kv_budget, batch, cache.form), threads)


def summary(report: Row) -> list[Row]:
    """Tokens a second of each cache, and how many times those of FULL and of WHOLE."""
    rates = {
        (row["context"], row["cache"]): row["batch"] / row["seconds"]["median"]
        for row in report["decode"]
    }
    return [
        {
            "context": context,
            "cache": cache,
            "tokens_per_second": rounded(rate),
            "times_full": _times(rate, rates.get((context, FULL.name))),
            "times_whole": _times(rate, rates.get((context, WHOLE.name))),
        }
        for (context, cache), rate in rates.items()
    ]


def _times(rate: float, other: float | None) -> float | None:
    return rounded(rate / other) if other else None
