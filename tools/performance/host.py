"""What a decode step takes beside the engine: scheduling, sampling, the requests' bookkeeping."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from snapexport.runtime.executor import Executor
from snapexport.runtime.llm import LLM
from snapexport.runtime.open_executor import open_executor
from snapexport.runtime.requests import SamplingParams

from .report import Report
from .setup import Setup
from .turns import Case, Row, clocked

HELP = "the share of Python in a decode step of 16 requests, by the way they sample"
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

    batch: int = 16
    L_max: int = 4096
    kv_budget: int = 1024
    prompt: int = 64
    rounds: int = 5
    steps: int = 4


DEFAULT = Options()
QUICK = Options(batch=4, L_max=512, kv_budget=128, rounds=2, steps=2)


def run(setup: Setup, options: Options, report: Report) -> None:
    """All samplings on one engine, in turn."""
    report.notes.append(NOTE)
    build = setup.builds().get(options.L_max, options.kv_budget, options.batch)
    engine = TimedEngine(open_executor(build, threads=setup.threads))
    running = Running(engine, build.manifest.model.vocab_size, options)
    for name in SAMPLINGS:
        labels = {"sampling": name, "batch": options.batch}
        cases = [
            Case(labels | {"part": "step"}, clocked(running.step), options.steps),
            Case(labels | {"part": "python"}, running.python, options.steps),
        ]
        running.start(name)
        report.measure("host", cases, options.rounds)


class TimedEngine:
    """An engine that knows what its last decode step took, in seconds."""

    def __init__(self, engine: Executor) -> None:
        self._engine = engine
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decode(self, *inputs: Any) -> Any:
        started = time.perf_counter()
        said = self._engine.decode(*inputs)
        self.seconds = time.perf_counter() - started
        return said


@dataclass
class Running:
    """As many requests as there are slots, that never end by themselves."""

    engine: TimedEngine
    vocab_size: int
    options: Options
    _llm: LLM | None = field(default=None, init=False)
    _ids: list[int] = field(default_factory=list, init=False)

    def start(self, sampling: str) -> None:
        """Other requests in the place of the former ones, prefilled."""
        engine: Any = self.engine
        self._llm = LLM.from_executor(engine)
        params = SamplingParams(max_tokens=1 << 20, ignore_eos=True, seed=0, **SAMPLINGS[sampling])
        shape = self.options.batch, self.options.prompt
        for prompt in np.random.default_rng(0).integers(0, self.vocab_size, shape).tolist():
            self._llm.submit(prompt, params)
        while self._llm.waiting or self._llm.slots_used < self.options.batch:
            self._llm.step()
        self._llm.step()

    def step(self) -> None:
        """A token for every request."""
        assert self._llm
        assert len(self._llm.step()) == self.options.batch

    def python(self) -> float:
        """Seconds of a step less the engine's."""
        return clocked(self.step)() - self.engine.seconds


def summary(report: Row) -> list[Row]:
    """The median of Python's part by that of the whole step."""
    rows = {(row["sampling"], row["part"]): row["seconds"]["median"] for row in report["host"]}
    names = dict.fromkeys(row["sampling"] for row in report["host"])
    return [
        {
            "sampling": name,
            "step_seconds": rows[name, "step"],
            "python_seconds": rows[name, "python"],
            "share": rows[name, "python"] / rows[name, "step"],
        }
        for name in names
        if (name, "step") in rows and (name, "python") in rows
    ]
