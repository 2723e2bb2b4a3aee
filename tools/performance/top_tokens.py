"""A decode step on the CPU with top_tokens in the graphs and without: the graph's part, and all.

Random weights. Requests of one kind of sampling fill all the slots of two builds that differ in
--top-tokens alone; these take turns, a step each. What top_tokens add is less than the noise of
such a step: it is timed by itself, too. Ends with one JSON line: docs/bench.md has its table.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.runtime.open_executor import open_executor

from .checkpoint import COMMON, SHAPES
from .host import SAMPLINGS, Options, Running, TimedEngine
from .turns import clocked

WARM_UP = 3


def main() -> None:
    """Build twice, then measure each kind of sampling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--top-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        builds = build_random(Path(scratch), given.vocabulary, given.batch, given.top_tokens)
        rows = [measure(builds, name, given.steps) for name in SAMPLINGS]
    added = alone(given.vocabulary, given.batch, given.top_tokens, given.steps)
    print(json.dumps({**vars(given), "alone": added, "milliseconds": rows}))


def build_random(directory: Path, vocabulary: int, batch: int, top_tokens: int) -> list[Build]:
    """Of random fp32 weights: without top_tokens, and with them."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from snapexport.builder import build

    shape = SHAPES["small"] | COMMON | {"vocab_size": vocabulary}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**shape))
    model.save_pretrained(directory / "model")
    options: dict[str, Any] = {"L_max": 4096, "kv_budget": 1024, "batch": batch}
    options["decode_batches"] = ()
    return [
        build(directory / "model", directory / f"{count}", top_tokens=count, **options)
        for count in (0, top_tokens)
    ]


def alone(vocabulary: int, batch: int, count: int, steps: int) -> float:
    """Milliseconds of the top_tokens' own operators, over random logits."""
    import onnx_graphsurgeon as gs
    import onnxruntime as ort

    from snapexport.graphs.passes.top_tokens import TopTokens
    from snapexport.graphs.surgery import IR_VERSION

    shape = batch, vocabulary
    given, logits = (gs.Variable(name, np.float32, shape) for name in ("given", names.LOGITS))
    nodes = [gs.Node("Identity", inputs=[given], outputs=[logits])]
    graph = gs.Graph(nodes, inputs=[given], outputs=[logits], opset=24)
    TopTokens(count).apply(graph)
    graph.outputs.remove(logits)
    model = gs.export_onnx(graph.cleanup().toposort())
    model.ir_version = IR_VERSION
    providers = ["CPUExecutionProvider"]
    session = ort.InferenceSession(model.SerializeToString(), providers=providers)
    feed = {
        "given": np.random.default_rng(0).standard_normal(shape, np.float32),
        names.TEMPERATURE: np.ones(batch, np.float32),
    }
    run = clocked(lambda: session.run(None, feed))
    seconds = [run() for _ in range(WARM_UP + steps)]
    return float(round(1e3 * median(seconds[WARM_UP:]), 2))


def stepper(build: Build, sampling: str) -> Callable[[], tuple[float, float]]:
    """A decode step of all its slots: seconds of the graph, and of the whole step."""
    engine = TimedEngine(open_executor(build))
    manifest = build.manifest
    running = Running(engine, manifest.model.vocab_size, Options(batch=manifest.batch))
    running.start(sampling)
    whole = clocked(running.step)

    def step() -> tuple[float, float]:
        seconds = whole()
        return engine.seconds, seconds

    return step


def measure(builds: Sequence[Build], sampling: str, steps: int) -> dict[str, Any]:
    """Medians of the graph and of the step, without and with top_tokens.

    Ratios are medians too, of those within a turn: a drift of the machine is in both alike.
    """
    steppers = [stepper(build, sampling) for build in builds]
    taken: list[list[tuple[float, float]]] = [[], []]
    for turn in range(WARM_UP + steps):
        for which in (0, 1) if turn % 2 else (1, 0):
            taken[which].append(steppers[which]())
    without, with_them = (np.array(rows[WARM_UP:]).T for rows in taken)
    row: dict[str, Any] = {"sampling": sampling}
    for name, before, after in zip(("graph", "step"), without, with_them, strict=True):
        row[name] = [round(1e3 * median(one), 2) for one in (before, after)]
        row[f"{name}_ratio"] = round(median(after / before), 4)
    return row


if __name__ == "__main__":
    main()
