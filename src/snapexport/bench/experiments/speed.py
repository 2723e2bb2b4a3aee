"""Measures speed and memory of a given build: `snapexport bench BUILD`.

Prefill by prompt length, decode steps by context and active batch slots, the compress step, and
peak memory. A visit fills the batch slots with prompts, then decodes with fewer and fewer of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

import numpy as np

from snapexport.bench import memory
from snapexport.bench.devices import Device
from snapexport.bench.memory import Filling
from snapexport.bench.options import BenchOptions
from snapexport.bench.results import Results
from snapexport.bench.spread import rounded
from snapexport.bench.systems import ExecutorSystem, System, SystemSpec, spec_of
from snapexport.bench.tables import TIMING, Table, mib, ms, number, timing
from snapexport.bench.turns import SHORT, Case, Group, Row, clocked
from snapexport.bench.vote import Vote
from snapexport.contract.build_directory import Build
from snapexport.contract.bytes import in_mib
from snapexport.contract.errors import UserError

KEEPS_ALL = "nothing is compressed: the full cache keeps everything"
INSIDE_PREFILL = "single shot: prefill.onnx compresses inside itself, which can't be timed apart"


@dataclass(frozen=True)
class Plan:
    """The checked steps of a measurement, before anything is loaded.

    options: contexts ascending; batches descending, since idle batch slots lose their caches.
    """

    build: Build
    options: BenchOptions
    specs: Sequence[SystemSpec]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]

    @classmethod
    def of(cls, build: Build, options: BenchOptions, peers: Sequence[SystemSpec] = ()) -> "Plan":
        """Check the options against every system. Raises UserError.

        peers: name -> other systems that take turns in the same run.
        """
        from snapexport.runtime.ort.backend import require_runnable

        require_runnable(build, baseline=options.baseline)
        sides = (False, True) if options.baseline else (False,)
        threads, prepack = options.threads, options.prepack
        own = [spec_of(build, baseline=b, threads=threads, prepack=prepack) for b in sides]
        return cls.over(build, options, [*own, *peers])

    @classmethod
    def over(cls, build: Build, options: BenchOptions, specs: Sequence[SystemSpec]) -> "Plan":
        """The same of systems that are described already."""
        most = min(spec.batch for spec in specs)
        batches = tuple(sorted(options.batches or {1, most}, reverse=True))
        room = options.decode_steps * len(batches)
        contexts = tuple(sorted(options.contexts or _default_contexts(specs, room)))
        _require_slots(batches[0], most)
        for spec in specs:
            _require_positions(contexts[-1], room, spec)
        options = replace(options, contexts=contexts, batches=batches)
        return cls(build, options, specs, contexts, batches)

    @property
    def slots(self) -> int:
        """Number of batch slots prefilled in a visit."""
        return self.batches[0]

    @property
    def vocab_size(self) -> int:
        return self.build.manifest.model.vocab_size

    @property
    def compresses_apart(self) -> bool:
        """Whether the build has a graph of its own for the compress step."""
        return "compress" in self.build.manifest.graphs

    def about(self) -> Row:
        """Facts of the build for the top of the results."""
        manifest = self.build.manifest
        return {
            "build": str(self.build.directory),
            "model": manifest.model.architecture,
            "target": manifest.target,
            "dtype": manifest.dtype,
        }


def run(plan: Plan, results: Results, device: Device) -> None:
    """Memory of each system in a process of its own, then all times in turn."""
    if not plan.compresses_apart:
        compresses = plan.build.manifest.geometry.compresses
        results.note(INSIDE_PREFILL if compresses else KEEPS_ALL)
    steps = plan.options.decode_steps
    filling = Filling(plan.slots, plan.contexts[-1], steps, plan.vocab_size)
    for done, spec in enumerate(plan.specs):
        results.tell("memory", done, len(plan.specs))
        results.add("memory", _memory_row(spec, memory.measure(spec, filling)))
    systems = [spec.load() for spec in plan.specs]
    groups = [
        visit(plan, spec, system, context)
        for context in plan.contexts
        for spec, system in zip(plan.specs, systems, strict=True)
    ]
    if plan.compresses_apart and isinstance(systems[0], ExecutorSystem):
        vote = Vote.of(plan.build, plan.options.threads)
        groups += [_compression(plan, systems[0], vote, context) for context in plan.contexts]
    results.measure("speed", groups, plan.options.repeat, device.probes())


def visit(plan: Plan, spec: SystemSpec, system: System, context: int) -> Group:
    """Prompts into all the slots, then steps of each batch. The longest context warms up."""
    warm = context == plan.contexts[-1]
    drawn = prompts(plan.options.seed, context, plan.vocab_size)
    slots = cycle(range(plan.slots))

    def prefill() -> None:
        system.prefill(next(slots), next(ahead))

    # Prompts are drawn before the clock starts.
    ahead = iter(list[list[int]]())

    def timed() -> float:
        nonlocal ahead
        ahead = iter([next(drawn)])
        return clocked(prefill)()

    work = spec.costs.prefill(context) if spec.costs else None
    labels = {"system": spec.name, "context": context}
    cases = [Case("prefill", labels, timed, plan.slots, warm, work, tokens=context)]
    for index, batch in enumerate(plan.batches):
        steps = plan.options.decode_steps
        position = context + steps * index + steps // 2  # at the middle step of the batch's turn
        work = spec.costs.decode(position, context, batch) if spec.costs else None
        step = clocked(partial(system.decode, batch))
        label = labels | {"batch": batch}
        cases.append(Case("decode", label, step, steps, warm, work, tokens=batch))
    return cases


def prompts(seed: int, context: int, vocab_size: int) -> Iterator[list[int]]:
    """Random prompts: the same for all systems, and all different within a run."""
    rng = np.random.default_rng([seed, context])
    while True:
        drawn: list[int] = rng.integers(0, vocab_size, context).tolist()
        yield drawn


def _compression(plan: Plan, system: ExecutorSystem, vote: Vote | None, context: int) -> Group:
    """The executor's compress step, and the vote by itself."""
    spec = plan.specs[0]
    labels = {"system": spec.name, "context": context}
    work = spec.costs.compress(context) if spec.costs else None
    step = clocked(partial(system.compress, context))
    cases = [Case("compress", labels, step, SHORT, work=work)]
    if vote:
        cases.append(Case("vote", labels, clocked(partial(vote.run, context)), SHORT))
    return cases


def _default_contexts(specs: Sequence[SystemSpec], room: int) -> set[int]:
    """A quarter, a half and all of the longest prompt that leaves room for decoding."""
    longest = min(min(one.longest_prompt, one.positions - room) for one in specs)
    return {max(1, longest // 4), max(1, longest // 2), max(1, longest)}


def _require_slots(asked: int, most: int) -> None:
    if asked > most:
        raise UserError(
            f"--batches {asked} is more than the {most} slots of the build",
            f"use --batches up to {most}, or build it again with --batch {asked}",
        )


def _require_positions(context: int, room: int, spec: SystemSpec) -> None:
    if context > spec.longest_prompt:
        raise UserError(
            f"--contexts {context} is longer than a prompt can be: {spec.longest_prompt} tokens",
            f"use --contexts up to {spec.longest_prompt}, or build with a larger --L-max",
        )
    if context + room > spec.positions:
        raise UserError(
            f"--contexts {context} leaves no room for {room} decoded tokens: the {spec.name} "
            f"cache ends at position {spec.positions}",
            f"use --contexts up to {max(1, spec.positions - room)}, or fewer --decode-steps",
        )


def _memory_row(spec: SystemSpec, taken: memory.Memory) -> Row:
    """A row of memory. Its least value is weights and all caches."""
    row: Row = {"system": spec.name, "bytes": taken.report(), "cache_bytes": spec.cache_bytes}
    if spec.costs is None or spec.cache_bytes is None:
        return row | {"roofline": None, "ratio": None}
    least = spec.costs.weights.nbytes + spec.cache_bytes
    return row | {"roofline": {"bytes": least}, "ratio": rounded(taken.peak / least)}


def summary(sections: Row) -> list[Row]:
    """The compress step's share of prefill; the vote, and the rest (below 0: noise)."""
    medians = {
        name: {(r["system"], r["context"]): r["seconds"]["median"] for r in sections.get(name, [])}
        for name in ("prefill", "compress", "vote")
    }
    found = []
    for (system, context), whole in medians["compress"].items():
        vote = medians["vote"].get((system, context))
        prefill = medians["prefill"].get((system, context))
        found.append(
            {
                "system": system,
                "context": context,
                "compress_seconds": whole,
                "share_of_prefill": rounded(whole / prefill) if prefill else None,
                "vote_seconds": vote,
                "moving_seconds": None if vote is None else rounded(whole - vote),
            }
        )
    return found


def tables(report: Row) -> Iterator[Table]:
    """Prefill, decode, compression, memory."""
    sections = report["sections"]
    heads = ["prompt", "system", "TTFT, ms", *TIMING, "tokens/s"]
    cells = [
        [str(r["context"]), r["system"], *timing(r), _rate(r)]
        for r in sorted(sections["prefill"], key=lambda row: int(row["context"]))
    ]
    yield Table("prefill", heads, cells)
    heads = ["context", "batch", "system", "step, ms", *TIMING, "tokens/s"]
    rows = sorted(sections["decode"], key=lambda row: (row["context"], row["batch"]))
    cells = [[f"{r['context']}", f"{r['batch']}", r["system"], *timing(r), _rate(r)] for r in rows]
    yield Table("decode", heads, cells)
    yield _compression_table(report)
    yield _memory_table(sections["memory"])


def _rate(row: Row) -> str:
    return number(row["tokens_per_second"])


def _compression_table(report: Row) -> Table:
    heads = ["prompt", "compress, ms", *TIMING, "of prefill", "vote, ms", "moving, ms"]
    parts = {row["context"]: row for row in report["summary"]}
    cells = []
    for row in sorted(report["sections"]["compress"], key=lambda row: int(row["context"])):
        part = parts[row["context"]]
        share = part["share_of_prefill"]
        cells.append(
            [
                str(row["context"]),
                *timing(row),
                "-" if share is None else f"{share:.2%}",
                ms(part["vote_seconds"]),
                ms(part["moving_seconds"]),
            ]
        )
    return Table("compression, after a prompt's last chunk", heads, cells, report["notes"])


def _memory_table(rows: list[Row]) -> Table:
    heads = [
        "system",
        "loaded, MiB",
        "peak, MiB",
        "least, MiB",
        "x of least",
        "own, at the end, MiB",
    ]
    cells = []
    for row in rows:
        used = row["bytes"]
        least = mib(row["roofline"]["bytes"]) if row["roofline"] else "-"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        caches = "-" if row["cache_bytes"] is None else f"{in_mib(row['cache_bytes']):.1f}"
        cells.append(
            [
                row["system"],
                mib(used["loaded"]),
                mib(used["peak"]),
                least,
                ratio,
                mib(used["anonymous"]),
                caches,
            ]
        )
    return Table("memory", [*heads, "caches, MiB"], cells)
