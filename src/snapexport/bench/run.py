"""A bench from its options to its report. Knows no terminal."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from snapexport.bench import machine, memory
from snapexport.bench.contender import Contender, Entrant
from snapexport.bench.entrants import entrants
from snapexport.bench.hand_over import HandOver, times_hand_over
from snapexport.bench.memory import Memory
from snapexport.bench.options import BenchOptions
from snapexport.bench.plan import Plan
from snapexport.bench.probes import Bandwidth, MatMul, Probe
from snapexport.bench.report import summed_up
from snapexport.bench.rounds import SHORT, Bench
from snapexport.bench.samples import Sample
from snapexport.contract.build_directory import Build
from snapexport.contract.files import write_whole

NO_HAND_OVER = "nothing is handed over: the full cache keeps everything"
INSIDE_PREFILL = "single shot: prefill.onnx compresses inside itself, which can't be timed apart"


@dataclass
class Run:
    """A bench and what it has measured so far: `report` at any time."""

    build: Build
    options: BenchOptions
    entrants: list[Entrant]
    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine.described)
    complete: bool = False

    @classmethod
    def of(cls, build: Build, options: BenchOptions, peers: Sequence[Entrant] = ()) -> "Run":
        """Decide and refuse; nothing is loaded. Raises UserError.

        peers: others that take their turns in the same run, under names of their own.
        """
        found = [*entrants(build, options), *peers]
        return cls(build, options, found, Plan.of(options, found))

    @property
    def steps(self) -> int:
        """How often `go` tells that it went on: for each entrant's memory and each sample."""
        hand_over = SHORT * len(self.plan.contexts) if times_hand_over(self.build) else 0
        timed = self.plan.slots + self.plan.decode_steps * len(self.plan.batches)
        visits = len(self.entrants) * len(self.plan.contexts)
        return len(self.entrants) + self.plan.repeat * (visits * timed + hand_over)

    @property
    def has_results(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.memory or self.samples)

    def go(self, tell: Callable[[], None]) -> None:
        """Measure everything."""
        for entrant in self.entrants:
            self.memory[entrant.name] = memory.measure(entrant, self.plan, self._vocab_size)
            tell()
        for sample in self._loaded().samples():
            self.samples.append(sample)
            if sample.measure in ("prefill", "decode", "hand_over"):
                tell()
        self.complete = True

    def report(self) -> dict[str, Any]:
        """What is known so far."""
        return {
            "build": str(self.build.directory),
            "model": self.build.manifest.model.architecture,
            "target": self.build.manifest.target,
            "dtype": self.build.manifest.dtype,
            "complete": self.complete,
            "machine": self.machine,
            "probe_threads": self._probe_threads,
            "options": asdict(self.options) | asdict(self.plan),
            "hand_over_note": _hand_over_note(self.build),
        } | summed_up(self.samples, self.plan, self.entrants, self.memory)

    @property
    def _vocab_size(self) -> int:
        return self.build.manifest.model.vocab_size

    @property
    def _probe_threads(self) -> int:
        return self.options.threads or machine.cores()

    def _loaded(self) -> Bench:
        own = self.entrants[0]
        hand_over = None
        if times_hand_over(self.build):
            hand_over = own.name, HandOver(self.build, self.options.threads)
        contenders: dict[str, Contender] = {one.name: one.load() for one in self.entrants}
        probes = list(_probes(self._probe_threads))
        clock = time.perf_counter
        return Bench(self.plan, contenders, self._vocab_size, probes, hand_over, clock)


def _probes(threads: int) -> Iterator[Probe]:
    yield Bandwidth(threads)
    yield MatMul(threads)


def _hand_over_note(build: Build) -> str | None:
    if times_hand_over(build):
        return None
    return INSIDE_PREFILL if build.manifest.geometry.compresses else NO_HAND_OVER


def write(report: dict[str, Any], path: Path) -> None:
    """The report as it is, whole or not at all."""
    write_whole(path, json.dumps(report, indent=1) + "\n")
