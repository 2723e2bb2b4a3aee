"""A load test from its options to its results. Knows no terminal."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from snapexport.bench.load import in_process
from snapexport.bench.load.exchange import Exchange
from snapexport.bench.load.options import LoadOptions
from snapexport.bench.load.server import TritonModel
from snapexport.bench.load.summary import Outcome, Side, summed_up
from snapexport.bench.load.workload import Workload
from snapexport.bench.results import Results
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.executor import Limits

Drive = Callable[[Workload], list[Exchange]]


@dataclass(frozen=True)
class LoadPlan:
    """A checked load test, before anything is loaded. options: with prompt_tokens."""

    build: Build
    options: LoadOptions

    @classmethod
    def of(cls, build: Build, options: LoadOptions) -> "LoadPlan":
        """Raises UserError."""
        from snapexport.runtime.ort.backend import require_runnable

        require_runnable(build)
        return cls(build, replace(options, prompt_tokens=_prompt_tokens(build, options)))

    def about(self) -> dict[str, Any]:
        """Facts of the build for the top of the results."""
        manifest = self.build.manifest
        return {
            "build": str(self.build.directory),
            "model": manifest.model.architecture,
            "batch": manifest.batch,
        }

    def order(self) -> list[tuple[int, int]]:
        """Rounds and numbers of clients: every second round goes backwards."""
        return [
            (number, clients)
            for number in range(self.options.repeat)
            for clients in sorted(self.options.clients, reverse=number % 2 == 1)
        ]

    def workload(self, number: int, clients: int) -> Workload:
        """The requests of a round."""
        options, vocab_size = self.options, self.build.manifest.model.vocab_size
        assert options.prompt_tokens is not None, "`of` chose it"
        seed, tokens = [options.seed, number, clients], options.prompt_tokens
        return Workload.drawn(
            seed, clients, options.requests, tokens, options.max_tokens, vocab_size
        )


def run(plan: LoadPlan, results: Results) -> None:
    """Load a running server and a runtime in this process, in turn."""
    from snapexport.runtime.llm import LLM

    options = plan.options
    name = options.server_model or plan.build.directory.absolute().stem
    server = TritonModel(options.server, name)
    server.require_ready()
    llm = LLM(plan.build.directory, threads=options.threads, prepack=options.prepack)
    clock = time.perf_counter
    sides: dict[Side, Drive] = {
        "in_process": lambda workload: in_process.drive(llm, workload, clock),
        "server": lambda workload: server.drive(workload, clock),
    }
    measure(plan, sides, results)


def measure(plan: LoadPlan, sides: dict[Side, Drive], results: Results) -> None:
    """The rounds, after a warm-up request that is not recorded."""
    for side, drive in sides.items():
        _require_answers(side, drive(plan.workload(plan.options.repeat, clients=1)))
    outcomes: list[Outcome] = []
    total = len(sides) * len(plan.order())
    for number, clients in plan.order():
        workload = plan.workload(number, clients)
        for side, drive in sides.items():
            results.tell("load", len(outcomes), total)
            outcomes.append(Outcome(side, clients, number, drive(workload)))
            results.sections["load"] = summed_up(outcomes)
    results.tell("load", total, total)


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
    """Send one request, and raise UserError if it fails: all others would fail too."""
    for one in exchanges:
        if one.error or not one.arrivals:
            raise UserError(
                f"a first request failed ({side}): {one.error or 'no tokens were counted'}",
                "see the server's log, and whether it serves this very build",
            )
