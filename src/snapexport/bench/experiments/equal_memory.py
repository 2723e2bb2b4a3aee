"""Measures throughput at equal memory: each cache with as many batch slots as fit."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from snapexport.bench.filled import open_filled
from snapexport.bench.results import Results
from snapexport.bench.setup import Setup
from snapexport.bench.spread import rounded
from snapexport.bench.tables import Table, of_roofline, spread_ms
from snapexport.bench.turns import Row, alone
from snapexport.contract.build_directory import Build
from snapexport.contract.bytes import in_gib
from snapexport.contract.errors import UserError
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.targets import CacheDType
from snapexport.runtime.memory import cache_bytes

HELP = "largest batch and tokens/s of caches of the same bytes, prompts of 16K to 128K"
DEVICES = ("cpu", "cuda")

PAPER = (
    # prompt, slots and tokens/s of the full cache, and of SnapStream at 4:1
    (32768, 64, 1832, 256, 7903),
    (65536, 32, 908, 128, 3928),
    (131072, 16, 434, 64, 1832),
)
"""SnapStream's Table 5: DeepSeek-R1 on 16 SN40L sockets."""


@dataclass(frozen=True)
class Cache:
    """A cache to compare. compression: prompt positions / cache slots. kv_budget: cache slots for
    every prompt. Neither: the full cache. smaller: bytes of the full cache's element / bytes of
    this cache's."""

    name: str
    compression: int | None = None
    kv_budget: int | None = None
    dtype: CacheDType | None = None
    smaller: int = 1

    def slots(self, prompt: int) -> int | None:
        """Cache slots; None for the full cache."""
        return prompt // self.compression if self.compression else self.kv_budget


FULL = Cache("full")
# SnapStream's graphs with a slot for each position: as much is read, by the others' operator.
WHOLE = Cache("1/1", 1)
QUARTER = Cache("1/4", 4)
# Its scales come on top: 0.1 to 0.8 % of its bytes.
QUARTER_IN_INT8 = Cache("1/4, int8", 4, dtype="int8", smaller=4)
SIXTEENTH = Cache("1/16", 16)


@dataclass(frozen=True)
class Options:
    """cache_bytes: of all decode caches of a build. 4 GiB: 131,072 positions of `small`."""

    cache_bytes: int = 4 << 30
    checkpoint: str = "small"
    prompts: tuple[int, ...] = (16384, 32768, 65536, 131072)
    caches: tuple[Cache, ...] = (FULL, WHOLE, QUARTER, QUARTER_IN_INT8, SIXTEENTH)
    rounds: int = 5
    steps: int = 2


DEFAULT = Options()
QUICK = Options(2 << 20, prompts=(1024, 2048), caches=(FULL, WHOLE, QUARTER), rounds=2)
CUDA = Options(32 << 30, "8b", caches=(FULL, Cache("8,192", kv_budget=8192)), rounds=3, steps=16)


@dataclass(frozen=True)
class Entry:
    """A row to measure."""

    prompt: int
    cache: Cache
    build: Build

    @property
    def labels(self) -> Row:
        return {
            "context": self.prompt,
            "cache": self.cache.name,
            "cache_bytes": cache_bytes(self.build.manifest).decode,
        }


def run(setup: Setup, options: Options, results: Results) -> None:
    """One length of prompts after the other: its caches are loaded together, and take turns.

    On a GPU, one build after the other.
    """
    results.note(*left_out(setup, options))
    together: dict[object, list[Entry]] = defaultdict(list)
    for entry in builds(setup, options):
        if not results.has("decode", entry.labels):
            key = entry.prompt if setup.device.holds_all else entry.build.directory
            together[key].append(entry)
    for entries in together.values():
        with ExitStack() as stack:
            found = {entry.build.directory: entry for entry in entries}
            longest = max(entry.prompt for entry in entries)
            systems = {
                directory: stack.enter_context(
                    open_filled(setup.device, entry.build, longest, results)
                )
                for directory, entry in found.items()
            }
            cases = [
                systems[one.build.directory].case(one.prompt, options.steps, **_others(one.labels))
                for one in entries
            ]
            results.measure("decode", alone(cases), options.rounds, setup.device.probes())
            del systems, cases  # before the next ones are loaded: 4 GiB each


def builds(setup: Setup, options: Options) -> Iterator[Entry]:
    """The builds, each with the largest batch that fits the memory. Raises UserError.

    Leaves out a full cache that does not fit even once.
    """
    made, position = setup.builds(options.checkpoint), _position_bytes(setup, options.checkpoint)
    positions = options.cache_bytes // position
    for prompt in options.prompts:
        for cache in options.caches:
            slots = cache.slots(prompt)
            batch = positions * cache.smaller // (slots or prompt)
            if batch:
                L_max = max(options.prompts) if cache.kv_budget else prompt
                form = (
                    GraphOptions(cache_dtype=cache.dtype, decode_attention="valid")
                    if cache.dtype
                    else setup.form
                )
                yield Entry(prompt, cache, made.get(L_max, slots, batch, form))
            elif slots is not None:
                raise UserError(
                    f"--cache-budget {options.cache_bytes} does not hold one slot of SnapStream",
                    f"give {slots * position // cache.smaller} bytes or more",
                )


def left_out(setup: Setup, options: Options) -> Iterator[str]:
    """A line for each full cache that the memory has no room for."""
    position = _position_bytes(setup, options.checkpoint)
    for prompt in options.prompts:
        if prompt * position > options.cache_bytes:
            yield (
                f"full cache of {prompt:,} left out: one slot takes {prompt * position:,} "
                f"bytes of {options.cache_bytes:,}"
            )


def _position_bytes(setup: Setup, checkpoint: str) -> int:
    """Keys and values of one position, all layers, in the build's dtype."""
    on_gpu = setup.device.name == "cuda"
    model = setup.model(checkpoint, setup.dtype if on_gpu else "fp32")
    config = json.loads((model / "config.json").read_text())
    heads: int = config["num_hidden_layers"] * config["num_key_value_heads"]
    return 2 * heads * int(config["head_dim"]) * (2 if on_gpu else 4)


def _others(labels: Row) -> Row:
    """All labels but the context, which each case adds."""
    return {name: value for name, value in labels.items() if name != "context"}


def summary(sections: Row) -> list[Row]:
    """Tokens a second of each cache, and their ratios to those of FULL and of WHOLE."""
    rates = {
        (row["context"], row["cache"]): row["batch"] / row["seconds"]["median"]
        for row in sections.get("decode", [])
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


def tables(report: Row) -> Iterator[Table]:
    """Ours, then the paper's."""
    rates = {(row["context"], row["cache"]): row for row in report["summary"]}
    heads = ["prompt", "cache", "requests", "caches, GiB", "step, ms", "x of roofline"]
    cells = []
    rows = report["sections"]["decode"]
    for row in sorted(rows, key=lambda row: int(row["context"])):
        rate = rates[row["context"], row["cache"]]
        cells.append(
            [
                f"{row['context']:,}",
                row["cache"],
                f"{row['batch']}",
                f"{in_gib(row['cache_bytes']):.2f}",
                spread_ms(row),
                of_roofline(row),
                f"{rate['tokens_per_second']:.1f}",
                *(f"{rate[one]:.2f}" if rate[one] else "" for one in ("times_full", "times_whole")),
            ]
        )
    left_out = [f"- {note}" for note in report["notes"] if "left out" in note]
    others = "SnapStream's Table 5 (DeepSeek-R1 on 16 SN40L sockets, 1/4):"
    yield Table(
        "equal memory", [*heads, "tokens/s", "x full", "x 1/1"], cells, [*left_out, "", others]
    )
    heads = [
        "prompt",
        "requests, full",
        "requests, 1/4",
        "tokens/s, full",
        "tokens/s, 1/4",
        "x full",
    ]
    cells = [
        [f"{prompt:,}", f"{few}", f"{many}", f"{slow:,}", f"{fast:,}", f"{fast / slow:.2f}"]
        for prompt, few, slow, many, fast in PAPER
    ]
    yield Table("SnapStream's Table 5", heads, cells)
