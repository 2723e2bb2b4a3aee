"""Throughput at equal memory: as many slots as one size of decode cache has room for."""

from dataclasses import dataclass

from snapexport.bench.spread import rounded
from snapexport.runtime.memory import cache_bytes

from .builds import Builds
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
class Options:
    """positions: of the full cache, in the memory that all have. 131,072: 4 GiB of `small`.

    compressions: positions of the prompt to a slot; 1 is the full cache.
    """

    positions: int = 131072
    prompts: tuple[int, ...] = (16384, 32768, 65536, 131072)
    compressions: tuple[int, ...] = (1, 4, 16)
    rounds: int = 5
    steps: int = 2


DEFAULT = Options()
QUICK = Options(positions=2048, prompts=(1024, 2048), compressions=(1, 4), rounds=2)


def run(setup: Setup, options: Options, report: Report) -> None:
    """One length of prompts after the other; its caches are loaded together, and take turns."""
    report.notes.append(NOTE)
    for prompt in options.prompts:
        engines = [
            _filled(setup.builds(), options, prompt, compression, setup.threads)
            for compression in options.compressions
        ]
        cases = [
            engine.case(
                prompt,
                options.steps,
                compression=compression,
                cache_bytes=cache_bytes(engine.build.manifest).decode,
            )
            for engine, compression in zip(engines, options.compressions, strict=True)
        ]
        report.measure("decode", cases, options.rounds)
        del engines, cases  # before the next ones are loaded: 4 GiB each


def _filled(
    builds: Builds, options: Options, prompt: int, compression: int, threads: int
) -> FilledEngine:
    """The largest batch that the memory has room for."""
    batch = options.positions * compression // prompt
    kv_budget = prompt // compression if compression > 1 else None
    return FilledEngine(builds.get(prompt, kv_budget, batch), threads)


def summary(report: Row) -> list[Row]:
    """Tokens a second of each cache, and how many times the full cache's."""
    found = []
    for row in report["decode"]:
        rate = row["batch"] / row["seconds"]["median"]
        (full,) = (
            one["batch"] / one["seconds"]["median"]
            for one in report["decode"]
            if one["context"] == row["context"] and one["compression"] == 1
        )
        found.append(
            {
                "context": row["context"],
                "compression": row["compression"],
                "tokens_per_second": rounded(rate),
                "times_full": rounded(rate / full),
            }
        )
    return found
