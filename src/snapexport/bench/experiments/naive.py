"""Compares the ring, which is written in place, with a cache that each step copies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from snapexport.bench import filled, memory, naive_decode
from snapexport.bench.filled import NOTE, FilledSystem
from snapexport.bench.memory import Filling
from snapexport.bench.naive_decode import NaiveDecode
from snapexport.bench.naive_graph import write
from snapexport.bench.results import Results
from snapexport.bench.setup import Setup
from snapexport.bench.spread import rounded
from snapexport.bench.systems import System, SystemSpec
from snapexport.bench.tables import Table, mib, spread_ms
from snapexport.bench.turns import Row, alone, clocked
from snapexport.contract.build_directory import Build
from snapexport.contract.targets import Target
from snapexport.runtime.memory import cache_bytes

HELP = "the paper's Listings 1-2 done naively, by Concat: step time and memory against the ring"
DEVICES = ("cpu",)


@dataclass(frozen=True)
class Options:
    """slots: S, a build each. steps: timed in a row."""

    slots: tuple[int, ...] = (1024, 4096, 16384)
    targets: tuple[Target, ...] = ("onnxruntime", "portable")
    batch: int = 4
    compression: int = 4
    rounds: int = 6
    steps: int = 3


DEFAULT = Options()
QUICK = Options(slots=(128, 256), rounds=2)


def run(setup: Setup, options: Options, results: Results) -> None:
    """One build after the other: time in turn, memory in processes of their own."""
    results.note(NOTE)
    for slots, target in product(options.slots, options.targets):
        prompt = slots * options.compression
        build = setup.builds(target=target).get(prompt, slots, options.batch)
        labels = {"slots": slots, "target": target}
        if not results.has("decode", labels):
            _measure_steps(setup, options, results, build, labels)
        if not results.has("memory", labels):
            _measure_memory(setup, options, results, build, labels)


def _measure_steps(
    setup: Setup, options: Options, results: Results, build: Build, labels: Row
) -> None:
    prompt = build.manifest.geometry.L_max
    with setup.device.opened(build) as executor:
        naive = NaiveDecode(build, write(build), setup.threads)
        ring = FilledSystem(build, executor)
        in_place = ring.case(prompt, options.steps, **labels, update="ring")
        anew = {**in_place.labels, "update": "naive"}
        step = clocked(partial(naive.step, prompt))
        cases = [in_place, replace(in_place, labels=anew, timed=step)]
        results.measure("decode", alone(cases), options.rounds, setup.device.probes())


def _measure_memory(
    setup: Setup, options: Options, results: Results, build: Build, labels: Row
) -> None:
    manifest, graph = build.manifest, write(build)
    L_max, limit = manifest.geometry.L_max, manifest.model.max_position_embeddings
    filling = Filling(options.batch, L_max, options.steps, manifest.model.vocab_size)
    loaders: dict[str, Callable[[], System]] = {
        "ring": partial(filled.load_filled, build.directory, setup.threads),
        "naive": partial(naive_decode.load, build.directory, graph, setup.threads),
    }
    for update, load in loaders.items():
        taken = memory.measure(SystemSpec(update, load, manifest.batch, L_max, limit), filling)
        of_caches = {"update": update, "cache_bytes": cache_bytes(manifest).decode}
        results.add("memory", labels | of_caches | taken.report())


def summary(sections: Row) -> list[Row]:
    """Each update's step time / the ring's step time."""
    rows = sections.get("decode", [])
    medians = {_key(row): row["seconds"]["median"] for row in rows}
    return [
        {
            "slots": slots,
            "target": target,
            "update": update,
            "times_ring": rounded(seconds / medians[slots, target, "ring"]),
        }
        for (slots, target, update), seconds in medians.items()
    ]


def _key(row: Row) -> tuple[int, str, str]:
    return row["slots"], row["target"], row["update"]


def tables(report: Row) -> Iterator[Table]:
    """A row for each build and update."""
    heads = ["slots", "target", "update", "step, ms", "x ring", "caches, MiB", "own memory, MiB"]
    memories = {_key(row): row for row in report["sections"]["memory"]}
    times = {_key(row): row for row in report["summary"]}
    cells = []
    for row in report["sections"]["decode"]:
        key = _key(row)
        taken = memories.get(key)
        held = [mib(taken[what]) for what in ("cache_bytes", "anonymous")] if taken else ["", ""]
        times_ring = f"{times[key]['times_ring']:.2f}"
        cells.append([f"{key[0]:,}", *key[1:], spread_ms(row), times_ring, *held])
    yield Table("the ring against a cache made anew", heads, cells)
