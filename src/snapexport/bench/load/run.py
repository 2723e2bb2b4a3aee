"""A load test from its options to its report. Knows no terminal."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from snapexport.bench import machine
from snapexport.bench.load import in_process
from snapexport.bench.load.exchange import Exchange
from snapexport.bench.load.options import LoadOptions
from snapexport.bench.load.server import TritonModel
from snapexport.bench.load.summary import Outcome, Side, summed_up
from snapexport.bench.load.workload import Workload
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.executor import Limits
from snapexport.runtime.ort.backend import require_runnable

Drive = Callable[[Workload], list[Exchange]]


@dataclass
class LoadRun:
    """A load test and what it has measured so far: `report` at any time."""

    build: Build
    options: LoadOptions
    prompt_tokens: int
    outcomes: list[Outcome] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine.described)
    complete: bool = False

    @classmethod
    def of(cls, build: Build, options: LoadOptions) -> "LoadRun":
        """Decide and refuse; nothing is loaded. Raises UserError."""
        require_runnable(build, baseline=False)
        return cls(build, options, _prompt_tokens(build, options))

    @property
    def steps(self) -> int:
        """How often `go` tells that it went on."""
        return 2 * len(self.options.clients) * self.options.repeat

    @property
    def has_results(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.outcomes)

    def go(self, tell: Callable[[], None]) -> None:
        """Ask the server that is there, and a runtime loaded here, in turn."""
        from snapexport.runtime.llm import LLM

        options = self.options
        name = options.server_model or self.build.directory.absolute().stem
        server = TritonModel(options.server, name)
        server.require_ready()
        llm = LLM(self.build.directory, threads=options.threads, prepack=options.prepack)
        clock = time.perf_counter
        sides: dict[Side, Drive] = {
            "in_process": lambda workload: in_process.drive(llm, workload, clock),
            "server": lambda workload: server.drive(workload, clock),
        }
        self.measure(sides, tell)

    def measure(self, sides: dict[Side, Drive], tell: Callable[[], None]) -> None:
        """The rounds, after a warm-up of one request that is not told."""
        for side, drive in sides.items():
            _require_answers(side, drive(self._workload(self.options.repeat, clients=1)))
        for round, clients in self._order():
            workload = self._workload(round, clients)
            for side, drive in sides.items():
                self.outcomes.append(Outcome(side, clients, round, drive(workload)))
                tell()
        self.complete = True

    def report(self) -> dict[str, Any]:
        """What is known so far."""
        return {
            "build": str(self.build.directory),
            "model": self.build.manifest.model.architecture,
            "batch": self.build.manifest.batch,
            "complete": self.complete,
            "machine": self.machine,
            "options": asdict(self.options) | {"prompt_tokens": self.prompt_tokens},
            "load": summed_up(self.outcomes),
        }

    def _order(self) -> Iterator[tuple[int, int]]:
        for round in range(self.options.repeat):
            for clients in sorted(self.options.clients, reverse=round % 2 == 1):
                yield round, clients

    def _workload(self, round: int, clients: int) -> Workload:
        options = self.options
        seed, words = [options.seed, round, clients], self.build.manifest.model.vocab_size
        return Workload.drawn(
            seed, clients, options.requests, self.prompt_tokens, options.max_tokens, words
        )


def _prompt_tokens(build: Build, options: LoadOptions) -> int:
    """As asked for, or half of the longest prompt; with room for the answer. Raises UserError."""
    manifest = build.manifest
    limits = Limits.of(manifest, full_cache=not manifest.geometry.compresses)
    most = min(limits.longest_prompt, limits.positions - options.max_tokens)
    asked = options.prompt_tokens or max(1, limits.longest_prompt // 2)
    if asked > most:
        raise UserError(
            f"prompts of {asked} tokens and {options.max_tokens} more do not fit the build",
            f"use --prompt-tokens up to {most}" if most > 0 else "use fewer --max-tokens",
        )
    return asked


def _require_answers(side: Side, exchanges: list[Exchange]) -> None:
    """One request that fails before the load says that all would."""
    for one in exchanges:
        if one.error or not one.arrivals:
            raise UserError(
                f"a first request failed ({side}): {one.error or 'no tokens were counted'}",
                "see the server's log, and whether it serves this very build",
            )
