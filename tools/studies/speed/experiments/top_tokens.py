"""Compares decode steps with and without `--top-tokens`: the graph alone, and the whole step.

Two builds that differ only in that option take turns, a step each, with all batch slots in use. The
option's cost is below the noise of a step, so its operators are also timed alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from snapexport.contract import names
from snapexport.measure.bench.probes import open_session
from snapexport.measure.bench.results import Table
from snapexport.measure.bench.turns import Case, Row, Timed, singles, timer
from tools.studies.speed.experiments.host import SAMPLINGS, Running, TimedExecutor
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

WARM_UP = 3


@dataclass(frozen=True)
class Options:
    """top_tokens: of the second build. steps: for each kind of sampling."""

    checkpoint: str = "wide-vocabulary"
    top_tokens: int = 64
    batch: int = 16
    L_max: int = 4096
    kv_budget: int = 1024
    prompt: int = 64
    steps: int = 30
    rounds: int = 1


def run(setup: Setup, options: Options, results: Results) -> None:
    """The operators alone, then both builds for each kind of sampling."""
    added = Case("operators", {}, _operators(setup, options), options.steps)
    results.measure("operators", singles([added]), 1)
    with ExitStack() as stack:
        both = []
        for count in (0, options.top_tokens):
            made = setup.builds(options.checkpoint, top_tokens=count)
            build = made.get(options.L_max, options.kv_budget, options.batch)
            executor = TimedExecutor(stack.enter_context(setup.device.opened(build)))
            both.append(Running(executor, options.prompt))
        for done, name in enumerate(SAMPLINGS):
            results.progress(name, done, len(SAMPLINGS))
            results.add("steps", {"sampling": name, **_compared(both, name, options.steps)})


def _operators(setup: Setup, options: Options) -> Timed:
    """Seconds of the top tokens' own operators, over random logits."""
    import onnx_graphsurgeon as gs

    from snapexport.graphs.surgery import IR_VERSION
    from snapexport.methods.top_tokens.surgery import TopTokens

    vocab_size = setup.builds(options.checkpoint).traced().manifest.model.vocab_size
    shape = options.batch, vocab_size
    given, logits = (gs.Variable(name, np.float32, shape) for name in ("given", names.LOGITS))
    nodes = [gs.Node("Identity", inputs=[given], outputs=[logits])]
    graph = gs.Graph(nodes, inputs=[given], outputs=[logits], opset=24)
    TopTokens(options.top_tokens).apply(graph)
    graph.outputs.remove(logits)
    model = gs.export_onnx(graph.cleanup().toposort())
    model.ir_version = IR_VERSION
    session = open_session(model.SerializeToString(), setup.threads)
    feed = {
        "given": np.random.default_rng(0).standard_normal(shape, np.float32),
        names.TEMPERATURE: np.ones(options.batch, np.float32),
    }
    return timer(lambda: session.run(None, feed))


def _compared(both: Sequence[Running], sampling: str, steps: int) -> Row:
    """Median seconds of the graph and of the step, without and with top tokens.

    A ratio is the median of the ratios within a turn, so that a drift of the machine cancels.
    """
    for running in both:
        running.start(sampling)
    taken: list[list[tuple[float, float]]] = [[], []]
    for turn in range(WARM_UP + steps):
        for which in (0, 1) if turn % 2 else (1, 0):
            whole = timer(both[which].step)()
            taken[which].append((both[which].executor.seconds, whole))
    without, with_them = (np.array(rows[WARM_UP:]).T for rows in taken)
    row: Row = {}
    for name, before, after in zip(("graph", "step"), without, with_them, strict=True):
        row[f"{name}_seconds"] = [float(median(one)) for one in (before, after)]
        row[f"{name}_ratio"] = float(median(after / before))
    return row


def tables(report: Row) -> Iterator[Table]:
    """A row for each kind of sampling."""
    heads, cells = ["sampling"], []
    for part in ("graph", "step"):
        heads += [f"{part} without, ms", "with, ms", "ratio"]
    for row in report["sections"]["steps"]:
        cells.append([row["sampling"]])
        for part in ("graph", "step"):
            both = [f"{1e3 * seconds:.1f}" for seconds in row[f"{part}_seconds"]]
            cells[-1] += [*both, f"{row[f'{part}_ratio']:.2f}"]
    operators = [
        f"- the operators by themselves: {1e3 * row['seconds']['median']:.2f} ms"
        for row in report["sections"]["operators"]
    ]
    yield Table("top tokens", heads, cells, operators)


TOP_TOKENS = Experiment(
    help="a decode step with --top-tokens and without, by the way requests sample",
    cpu=Options(),
    quick=Options(top_tokens=8, batch=2, L_max=512, kv_budget=128, steps=2),
    run=run,
    tables=tables,
)
