"""Measures speed and memory of a given build: `snapexport bench BUILD`.

Prefill by prompt length, decode steps by context and active batch slots, the compress step, and
peak memory. A visit fills the batch slots with a prompt, then decodes with fewer and fewer of them.
Shows a report's tables too.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from snapexport.contract.memory import in_mib
from snapexport.measure.bench.plan import Plan
from snapexport.measure.bench.probes import Bound, extracted_vote, run_vote
from snapexport.measure.bench.results import Column, Results, Table, mib, ms, number, timing
from snapexport.measure.bench.systems import ExecutorSystem, SystemSpec, measure_memory
from snapexport.measure.bench.turns import SHORT, Case, Group, Row, six_digits, timer

KEEPS_ALL = "nothing is compressed: the full cache keeps everything"
INSIDE_PREFILL = "single shot: prefill.onnx compresses inside itself, which can't be timed apart"


def run(plan: Plan, results: Results, probes: Sequence[Case]) -> None:
    """Memory of each system in a process of its own, then all times in turn."""
    manifest, steps = plan.build.manifest, plan.options.decode_steps
    vocab_size = manifest.model.vocab_size
    use = partial(fill_and_decode, plan.batches[0], plan.contexts[-1], steps, vocab_size)
    for done, spec in enumerate(plan.specs):
        results.progress("memory", done, len(plan.specs))
        results.add("memory", _memory_row(spec, measure_memory(spec.name, spec.load, use)))
    systems = [spec.load() for spec in plan.specs]
    groups = [
        visit(plan, spec, system, context)
        for context in plan.contexts
        for spec, system in zip(plan.specs, systems, strict=True)
    ]
    if "compress" in manifest.graphs:
        in_onnx_runtime = plan.options.backend == "onnxruntime"
        vote = extracted_vote(plan.build, plan.options.threads) if in_onnx_runtime else None
        groups += [_compression(plan, systems[0], vote, context) for context in plan.contexts]
    else:
        results.note(INSIDE_PREFILL if manifest.geometry.compresses else KEEPS_ALL)
    results.measure("speed", groups, plan.options.repeat, probes)


def fill_and_decode(
    slots: int, prompt: int, steps: int, vocab_size: int, system: ExecutorSystem
) -> None:
    """Fill batch slots with a random prompt, then decode some steps."""
    drawn = next(prompts(0, prompt, vocab_size))
    for slot in range(slots):
        system.prefill(slot, drawn)
    for _ in range(steps):
        system.decode(slots)


def visit(plan: Plan, spec: SystemSpec, system: ExecutorSystem, context: int) -> Group:
    """A prompt into all the slots, then steps of each batch. The longest context warms up.

    The clock is on the first slot's prefill. The others get the same prompt, which the runtime
    compresses once more without running it: a step's time does not depend on values.
    """
    warm = context == plan.contexts[-1]
    drawn = prompts(plan.options.seed, context, plan.build.manifest.model.vocab_size)

    def prefill() -> float:
        prompt = next(drawn)  # before the clock starts
        seconds = timer(partial(system.prefill, 0, prompt))()
        for slot in range(1, plan.batches[0]):
            system.prefill(slot, prompt)
        system.fill_slot()  # not in the time of the step that follows
        return seconds

    labels, work = {"system": spec.name, "context": context}, spec.costs.prefill(context)
    cases = [Case("prefill", labels, prefill, 1, warm, work, tokens=context)]
    for index, batch in enumerate(plan.batches):
        steps = plan.options.decode_steps
        position = context + steps * index + steps // 2  # at the middle step of the batch's turn
        work = spec.costs.decode(position, batch)
        step = timer(partial(system.decode, batch))
        at = labels | {"batch": batch}
        cases.append(Case("decode", at, step, steps, warm, work, tokens=batch))
    return cases


def prompts(seed: int, context: int, vocab_size: int) -> Iterator[list[int]]:
    """Random prompts: the same for all systems, and all different within a run."""
    rng = np.random.default_rng([seed, context])
    while True:
        drawn: list[int] = rng.integers(0, vocab_size, context).tolist()
        yield drawn


def _compression(plan: Plan, system: ExecutorSystem, vote: Bound | None, context: int) -> Group:
    """The executor's compress step, and the vote by itself."""
    labels = {"system": plan.specs[0].name, "context": context}
    work, step = plan.specs[0].costs.compress(context), timer(partial(system.compress, context))
    cases = [Case("compress", labels, step, SHORT, work=work)]
    if vote:
        cases.append(Case("vote", labels, timer(partial(run_vote, vote, context)), SHORT))
    return cases


def _memory_row(spec: SystemSpec, taken: dict[str, int]) -> Row:
    """A row of memory. Its least value is weights and all caches."""
    least = spec.costs.weights.nbytes + spec.cache_bytes
    return {
        "system": spec.name,
        "bytes": taken,
        "cache_bytes": spec.cache_bytes,
        "roofline": {"bytes": least},
        "ratio": six_digits(taken["peak"] / least),
    }


def summary(sections: Row) -> list[Row]:
    """The compress step's share of prefill; the vote, and the rest (below 0: noise)."""
    prefill, compress, vote = (
        {(r["system"], r["context"]): r["seconds"]["median"] for r in sections.get(name, [])}
        for name in ("prefill", "compress", "vote")
    )
    return [
        {
            "system": system,
            "context": context,
            "compress_seconds": whole,
            "share_of_prefill": six_digits(whole / prefill[at]) if at in prefill else None,
            "vote_seconds": vote.get(at),
            "moving_seconds": six_digits(whole - vote[at]) if at in vote else None,
        }
        for (system, context), whole in compress.items()
        if (at := (system, context))
    ]


_HELD = "least: weights and all caches; own: pages of the process that are in no file, at the end"


def tables(report: Row) -> Iterator[Table]:
    """Prefill, decode, compression, memory."""
    sections = report["sections"]
    prompt: dict[str, Column] = {"prompt": "{context}"}
    system: dict[str, Column] = {"system": "{system}"}
    rate: dict[str, Column] = {"tokens/s": lambda row: number(row["tokens_per_second"])}
    rows = sorted(sections["prefill"], key=_order)
    yield Table.of("prefill", rows, prompt | system | timing("TTFT, ms") | rate)
    at: dict[str, Column] = {"context": "{context}", "batch": "{batch}"}
    rows = sorted(sections["decode"], key=_order)
    yield Table.of("decode", rows, at | system | timing("step, ms") | rate)
    parts = {row["context"]: row for row in report["summary"]}
    rows = [row | parts[row["context"]] for row in sorted(sections["compress"], key=_order)]
    split: dict[str, Column] = {
        "of prefill": lambda row: (
            "-" if row["share_of_prefill"] is None else f"{row['share_of_prefill']:.2%}"
        ),
        "vote, ms": lambda row: ms(row["vote_seconds"]),
        "moving, ms": lambda row: ms(row["moving_seconds"]),
    }
    title = "compression, after a prompt's last chunk"
    yield Table.of(title, rows, prompt | timing("compress, ms") | split, report["notes"])
    held: dict[str, Column] = {
        "loaded, MiB": lambda row: mib(row["bytes"]["loaded"]),
        "peak, MiB": lambda row: mib(row["bytes"]["peak"]),
        "least, MiB": lambda row: mib(row["roofline"]["bytes"]),
        "peak : least": "{ratio:.2f}",
        "own, MiB": lambda row: mib(row["bytes"]["anonymous"]),
        "caches, MiB": lambda row: f"{in_mib(row['cache_bytes']):.1f}",
    }
    yield Table.of(
        "memory", sections["memory"], system | held, [_HELD] if sections["memory"] else []
    )


def _order(row: Row) -> tuple[int, int]:
    return row["context"], row.get("batch", 0)
