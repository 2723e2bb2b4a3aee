"""Measures throughput at equal memory: each cache with as many batch slots as fit."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.memory import cache_bytes
from snapexport.errors import UserError
from snapexport.files.dtypes import CacheDType
from snapexport.measure.bench.results import Column, Table, of_roofline
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.filled import Step, measure_steps
from tools.studies.speed.record import Results, spread_ms
from tools.studies.speed.setup import Experiment, Setup

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


def run(setup: Setup, options: Options, results: Results) -> None:
    """One length of prompts after the other: its caches are loaded together, and take turns.

    On a GPU, one build after the other.
    """
    results.note(*left_out(setup, options))
    together: dict[object, list[Step]] = defaultdict(list)
    for step in builds(setup, options):
        together[step.context if setup.device.holds_all else step.build.directory].append(step)
    for steps in together.values():
        measure_steps(setup.device, results, steps, options.steps, options.rounds)


def builds(setup: Setup, options: Options) -> Iterator[Step]:
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
                in_dtype = GraphOptions(cache_dtype=cache.dtype, decode_attention="valid")
                build = made.get(L_max, slots, batch, in_dtype if cache.dtype else setup.form)
                nbytes = cache_bytes(build.manifest).decode
                yield Step(build, prompt, {"cache": cache.name, "cache_bytes": nbytes})
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


def summary(sections: Row) -> list[Row]:
    """Tokens a second of each cache, and their ratios to those of FULL and of WHOLE."""
    rates = {
        (row["context"], row["cache"]): row["batch"] / row["seconds"]["median"]
        for row in sections.get("decode", [])
    }
    found = []
    for (context, cache), rate in rates.items():
        row = {"context": context, "cache": cache, "tokens_per_second": six_digits(rate)}
        for name, other in (("times_full", FULL), ("times_whole", WHOLE)):
            base = rates.get((context, other.name))
            row[name] = six_digits(rate / base) if base else None
        found.append(row)
    return found


def tables(report: Row) -> Iterator[Table]:
    """Ours, then the paper's."""
    rates = {(row["context"], row["cache"]): row for row in report["summary"]}
    columns: dict[str, Column] = {
        "prompt": "{context:,}",
        "cache": "{cache}",
        "requests": "{batch}",
        "caches, GiB": lambda row: f"{row['cache_bytes'] / 2**30:.2f}",
        "step, ms": spread_ms,
        "x of roofline": of_roofline,
        "tokens/s": "{tokens_per_second:.1f}",
        "x full": lambda row: f"{row['times_full']:.2f}" if row["times_full"] else "",
        "x 1/1": lambda row: f"{row['times_whole']:.2f}" if row["times_whole"] else "",
    }
    decode = sorted(report["sections"]["decode"], key=lambda row: int(row["context"]))
    rows = [row | rates[row["context"], row["cache"]] for row in decode]
    notes = [f"- {note}" for note in report["notes"] if "left out" in note]
    notes += ["", "SnapStream's Table 5 (DeepSeek-R1 on 16 SN40L sockets, 1/4):"]
    yield Table.of("equal memory", rows, columns, notes)
    cells = [
        [f"{prompt:,}", f"{few}", f"{many}", f"{slow:,}", f"{fast:,}", f"{fast / slow:.2f}"]
        for prompt, few, slow, many, fast in PAPER
    ]
    heads = "prompt|requests, full|requests, 1/4|tokens/s, full|tokens/s, 1/4|x full".split("|")
    yield Table("SnapStream's Table 5", heads, cells)


EQUAL_MEMORY = Experiment(
    help="largest batch and tokens/s of caches of the same bytes, prompts of 16K to 128K",
    cpu=Options(),
    quick=Options(2 << 20, prompts=(1024, 2048), caches=(FULL, WHOLE, QUARTER), rounds=2),
    cuda=Options(32 << 30, "8b", caches=(FULL, Cache("8,192", kv_budget=8192)), rounds=3, steps=16),
    run=run,
    builds=builds,
    summary=summary,
    tables=tables,
)
