"""The ring, written in place, against a cache that each step makes anew."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from snapexport.bench import memory
from snapexport.bench.contender import Contender, Entrant
from snapexport.bench.plan import Plan
from snapexport.bench.spread import rounded
from snapexport.contract.build_directory import Build
from snapexport.contract.targets import Target
from snapexport.runtime.memory import cache_bytes

from . import filled, naive_decode
from .filled import NOTE, FilledEngine
from .naive_decode import NaiveDecode
from .naive_graph import write
from .report import Report
from .setup import Setup
from .turns import Row, clocked

HELP = "the paper's Listings 1-2 done naively, by Concat: step time and memory against the ring"


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


def run(setup: Setup, options: Options, report: Report) -> None:
    """One build after the other: time in turn, memory in processes of their own."""
    report.notes.append(NOTE)
    for slots, target in product(options.slots, options.targets):
        prompt = slots * options.compression
        build = setup.builds(target=target).get(prompt, slots, options.batch)
        labels = {"slots": slots, "target": target}
        _measure_steps(report, options, build, labels, setup.threads)
        _measure_memory(report, options, build, labels, setup.threads)


def _measure_steps(
    report: Report, options: Options, build: Build, labels: Row, threads: int
) -> None:
    prompt = build.manifest.geometry.L_max
    ring, naive = FilledEngine(build, threads), NaiveDecode(build, write(build), threads)
    in_place = ring.case(prompt, options.steps, **labels, update="ring")
    anew = {**in_place.labels, "update": "naive"}
    step = clocked(partial(naive.step, prompt))
    cases = [in_place, replace(in_place, labels=anew, timed=step)]
    report.measure("decode", cases, options.rounds)


def _measure_memory(
    report: Report, options: Options, build: Build, labels: Row, threads: int
) -> None:
    """Of each in a process of its own."""
    manifest = build.manifest
    L_max, limit = manifest.geometry.L_max, manifest.model.max_position_embeddings
    plan = Plan((L_max,), (options.batch,), options.steps, 1, seed=0)
    loaders: dict[str, Callable[[], Contender]] = {
        "ring": partial(filled.load, build.directory, threads),
        "naive": partial(naive_decode.load, build.directory, write(build), threads),
    }
    for update, load in loaders.items():
        entrant = Entrant(update, load, manifest.batch, L_max, limit)
        taken = memory.measure(entrant, plan, manifest.model.vocab_size)
        of_caches = {"update": update, "cache_bytes": cache_bytes(manifest).decode}
        report.sections["memory"].append(labels | of_caches | taken.report())


def summary(report: Row) -> list[Row]:
    """How many times the ring's step each update takes."""
    medians = {_key(row): row["seconds"]["median"] for row in report["decode"]}
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
