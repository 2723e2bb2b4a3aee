"""Measures Python's share of a decode step: scheduling, sampling and bookkeeping of requests."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from snapexport.measure.bench.results import Column, Table
from snapexport.measure.bench.turns import Case, Row, singles, timer
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

NOTE = (
    "weights are random, so that all tokens are nearly as likely: top-p has no harder case. "
    "Requests ask for no text"
)

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k 50": {"temperature": 0.8, "top_k": 50},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "top-k 50, top-p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "temperature alone": {"temperature": 0.8},
}


@dataclass(frozen=True)
class Options:
    """batch: requests that decode together, all of the same sampling."""

    checkpoint: str = "small"
    batch: int = 16
    L_max: int = 4096
    kv_budget: int = 1024
    prompt: int = 64
    rounds: int = 5
    steps: int = 4


def run(setup: Setup, options: Options, results: Results) -> None:
    """All samplings on one executor, in turn."""
    results.note(NOTE)
    made = setup.builds(options.checkpoint)
    build = made.get(options.L_max, options.kv_budget, options.batch, setup.form)
    probes = setup.device.probes()
    with setup.device.opened(build) as executor:
        running = Running(TimedExecutor(executor), options.prompt)
        for name in SAMPLINGS:
            labels = {"sampling": name, "batch": options.batch}
            parts = {"step": timer(running.step), "python": running.python}
            cases = [
                Case("host", labels | {"part": part}, timed, options.steps)
                for part, timed in parts.items()
                if not results.has("host", labels | {"part": part})
            ]
            if cases:
                running.start(name)
                results.measure(name, singles(cases), options.rounds, probes)


class TimedExecutor:
    """An executor that records the seconds of its last decode step."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def decode(self, *inputs: Any) -> Any:
        started = time.perf_counter()
        predictions = self._executor.decode(*inputs)
        self.seconds = time.perf_counter() - started
        return predictions


class Running:
    """As many requests as there are batch slots, that never end by themselves."""

    def __init__(self, executor: Any, prompt: int) -> None:
        self.executor, self.prompt = executor, prompt
        self._llm: LLM | None = None

    def start(self, sampling: str) -> None:
        """Replace the requests by new ones, and prefill them."""
        limits = self.executor.limits
        self._llm = LLM.from_executor(self.executor)
        params = SamplingParams(max_tokens=1 << 20, ignore_eos=True, seed=0, **SAMPLINGS[sampling])
        shape = limits.batch, self.prompt
        for prompt in np.random.default_rng(0).integers(0, limits.vocab_size, shape).tolist():
            self._llm.submit(prompt, params)
        while self._llm.waiting or self._llm.slots_used < limits.batch:
            self._llm.step()
        self._llm.step()

    def step(self) -> None:
        """A token for every request."""
        assert self._llm
        assert len(self._llm.step()) == self.executor.limits.batch

    def python(self) -> float:
        """Seconds of a step less the executor's."""
        return timer(self.step)() - float(self.executor.seconds)


def summary(sections: Row) -> list[Row]:
    """Median of Python's seconds / median of the whole step."""
    medians: dict[str, Row] = {}
    for row in sections.get("host", []):
        medians.setdefault(row["sampling"], {})[row["part"]] = row["seconds"]["median"]
    return [
        {
            "sampling": name,
            "step_seconds": parts["step"],
            "python_seconds": parts["python"],
            "share": parts["python"] / parts["step"],
        }
        for name, parts in medians.items()
        if len(parts) == 2  # else the run was cut between them
    ]


def tables(report: Row) -> Iterator[Table]:
    """A row for each way of sampling."""
    columns: dict[str, Column] = {
        "sampling": "{sampling}",
        "step, ms": lambda row: f"{1e3 * row['step_seconds']:.1f}",
        "of it Python, ms": lambda row: f"{1e3 * row['python_seconds']:.2f}",
        "share": "{share:.1%}",
    }
    yield Table.of("Python beside the executor", report["summary"], columns)


HOST = Experiment(
    help="the share of Python in a decode step of 16 requests, by the way they sample",
    cpu=Options(),
    quick=Options(batch=4, L_max=512, kv_budget=128, rounds=2, steps=2),
    cuda=Options("8b"),
    run=run,
    summary=summary,
    tables=tables,
)
