"""Compares the ring, which is written in place, with a cache that each step copies.

The copying graph is the paper's Listing 2: sinks, the ring without its oldest row, the new row and
the top-k rows are concatenated. The ring must be full, and its oldest row must lie in its first
slot.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import onnx
from onnx import helper

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.contract.slots import LayerGeometry
from snapexport.contract.targets import Target
from snapexport.measure.bench.results import Column, Table, mib
from snapexport.measure.bench.systems import measure_memory
from snapexport.measure.bench.turns import Row, singles, six_digits, timer
from tools.studies.speed.filled import NOTE, FilledSystem
from tools.studies.speed.naive import NaiveDecode, naive_step, repeat, ring_step
from tools.studies.speed.record import Results, spread_ms
from tools.studies.speed.setup import Experiment, Setup

_POSITIONS = 2
"""The axis of positions in a cache [B,Hkv,S,D]."""


@dataclass(frozen=True)
class Options:
    """slots: S, a build each. steps: timed in a row."""

    slots: tuple[int, ...] = (1024, 4096, 16384)
    targets: tuple[Target, ...] = ("onnxruntime", "portable")
    batch: int = 4
    compression: int = 4
    rounds: int = 6
    steps: int = 3


def run(setup: Setup, options: Options, results: Results) -> None:
    """One build after the other: time in turn, memory in processes of their own."""
    results.note(NOTE)
    for slots, target in product(options.slots, options.targets):
        prompt = slots * options.compression
        build = setup.builds(target=target).get(prompt, slots, options.batch)
        labels, graph = {"slots": slots, "target": target}, write(build)
        if not results.has("decode", labels):
            with setup.device.opened(build) as executor:
                ring = FilledSystem(build, executor).case(
                    prompt, options.steps, **labels, update="ring"
                )
                step = timer(partial(NaiveDecode(build, graph, setup.threads).step, prompt))
                anew = replace(ring, labels={**ring.labels, "update": "naive"}, timed=step)
                cases, probes = singles([ring, anew]), setup.device.probes()
                results.measure("decode", cases, options.rounds, probes)
        if not results.has("memory", labels):
            loaders: dict[str, Callable[[], Callable[[], None]]] = {
                "ring": partial(ring_step, build.directory, setup.threads),
                "naive": partial(naive_step, build.directory, graph, setup.threads),
            }
            for update, load in loaders.items():
                taken = measure_memory(update, load, partial(repeat, options.steps))
                of_caches = {"update": update, "cache_bytes": cache_bytes(build.manifest).decode}
                results.add("memory", labels | of_caches | taken)


def write(build: Build) -> Path:
    """The naive graph of a build, beside its own, whose weights it reads. Written anew each time:
    what made the build does not tell what made this."""
    model = onnx.load(build.graph("decode"), load_external_data=False)
    layers = {
        name(index): layer
        for index, layer in enumerate(build.manifest.geometry.layers)
        for name in (names.past_key, names.past_value)
    }
    nodes, rewritten = list[onnx.NodeProto](), 0
    for node in model.graph.node:
        if node.op_type == "TensorScatter" and node.input[0] in layers:
            nodes += _concatenated(model.graph, node, layers[node.input[0]])
            rewritten += 1
        else:
            nodes.append(node)
    assert rewritten == len(layers), rewritten
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    path = build.directory / "decode.naive.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _concatenated(
    graph: onnx.GraphProto, write: onnx.NodeProto, layer: LayerGeometry
) -> Iterator[onnx.NodeProto]:
    """The nodes in place of a write of the new row (second input) into the cache (first)."""
    past, new = write.input[:2]
    (present,) = write.output
    ring, topk = layer.L_sink, layer.L_sink + layer.L_recent
    ranges = {"sinks": (0, ring), "ring": (ring + 1, topk), "topk": (topk, layer.cache_slots)}
    parts = {name: f"{past}.{name}" for name, (start, end) in ranges.items() if end > start}
    for name, part in parts.items():
        limits = [_int64(graph, f"{part}.{n}", n) for n in (*ranges[name], _POSITIONS)]
        yield helper.make_node("Slice", [past, *limits], [part])
    parts["new"] = new
    ordered = [parts[name] for name in ("sinks", "ring", "new", "topk") if name in parts]
    yield helper.make_node("Concat", ordered, [present], axis=_POSITIONS)


def _int64(graph: onnx.GraphProto, name: str, value: int) -> str:
    graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
    return name


def summary(sections: Row) -> list[Row]:
    """Each update's step time / the ring's step time."""
    medians = {_key(row): row["seconds"]["median"] for row in sections.get("decode", [])}
    return [
        {
            "slots": slots,
            "target": target,
            "update": update,
            "times_ring": six_digits(seconds / medians[slots, target, "ring"]),
        }
        for (slots, target, update), seconds in medians.items()
    ]


def _key(row: Row) -> tuple[int, str, str]:
    return row["slots"], row["target"], row["update"]


def tables(report: Row) -> Iterator[Table]:
    """A row for each build and update."""
    memories = {_key(row): row for row in report["sections"]["memory"]}
    times = {_key(row): row for row in report["summary"]}
    rows = [
        {**memories.get(_key(r), {}), **times[_key(r)], **r} for r in report["sections"]["decode"]
    ]
    columns: dict[str, Column] = {
        "slots": "{slots:,}",
        "target": "{target}",
        "update": "{update}",
        "step, ms": spread_ms,
        "x ring": "{times_ring:.2f}",
        "caches, MiB": lambda row: mib(row["cache_bytes"]) if "cache_bytes" in row else "",
        "own memory, MiB": lambda row: mib(row["anonymous"]) if "anonymous" in row else "",
    }
    yield Table.of("the ring against a cache made anew", rows, columns)


NAIVE = Experiment(
    help="the paper's Listings 1-2 done naively, by Concat: step time and memory against the ring",
    cpu=Options(),
    quick=Options(slots=(128, 256), rounds=2),
    run=run,
    summary=summary,
    tables=tables,
)
