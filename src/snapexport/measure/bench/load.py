"""Loads a running server and the runtime in this process, in turn: `snapexport bench --server`.

The server's cost is the ratio of its throughput to the runtime's. Knows no terminal.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.bench.clients import Exchange, TritonModel, Workload, drive_in_process
from snapexport.measure.bench.options import LoadOptions
from snapexport.measure.bench.results import Results
from snapexport.measure.bench.tables import Column, Table, ms, number
from snapexport.measure.bench.turns import Row, rounded, spread, tail
from snapexport.runtime.engine.limits import Limits

Side = Literal["in_process", "server"]
SIDES: tuple[Side, Side] = ("in_process", "server")
Drive = Callable[[Workload], list[Exchange]]


@dataclass(frozen=True)
class LoadPlan:
    """A checked load test, before anything is loaded. options: with prompt_tokens."""

    build: Build
    options: LoadOptions

    @classmethod
    def of(cls, build: Build, options: LoadOptions) -> "LoadPlan":
        build.require_run(backend="onnxruntime")
        return cls(build, replace(options, prompt_tokens=_prompt_tokens(build, options)))

    def about(self) -> Row:
        """Facts of the build for the top of the results."""
        manifest = self.build.manifest
        return {
            "build": str(self.build.directory),
            "model": manifest.model.architecture,
            "batch": manifest.batch,
        }

    def workload(self, number: int, clients: int) -> Workload:
        """The requests of a round: random, so that no two have a common prefix."""
        options, vocab_size = self.options, self.build.manifest.model.vocab_size
        assert options.prompt_tokens is not None, "`of` chose it"
        shape = clients, options.requests, options.prompt_tokens
        drawn = np.random.default_rng([options.seed, number, clients])
        return Workload(drawn.integers(0, vocab_size, shape).tolist(), options.max_tokens)


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


def run(plan: LoadPlan, results: Results) -> None:
    """Open both sides, and measure."""
    from snapexport.runtime.requests.llm import LLM

    options = plan.options
    name = options.server_model or plan.build.directory.absolute().stem
    server = TritonModel(options.server, name)
    server.require_ready()
    llm = LLM(plan.build.directory, threads=options.threads, prepack=options.prepack)
    sides: dict[Side, Drive] = {
        "in_process": partial(drive_in_process, llm, clock=time.perf_counter),
        "server": partial(server.drive, clock=time.perf_counter),
    }
    measure(plan, sides, results)


def measure(plan: LoadPlan, sides: dict[Side, Drive], results: Results) -> None:
    """The rounds, after a warm-up request that is not recorded."""
    for side, drive in sides.items():
        _require_answers(side, drive(plan.workload(plan.options.repeat, clients=1)))
    outcomes: list[Outcome] = []
    total = len(sides) * plan.options.repeat * len(plan.options.clients)
    for turn in range(plan.options.repeat):
        for clients in sorted(plan.options.clients, reverse=turn % 2 == 1):
            workload = plan.workload(turn, clients)
            for side, drive in sides.items():
                results.progress("load", len(outcomes), total)
                outcomes.append(Outcome(side, clients, turn, drive(workload)))
                results.sections["load"] = summed_up(outcomes)
    results.progress("load", total, total)


def _require_answers(side: Side, exchanges: list[Exchange]) -> None:
    """Raise UserError if a first request failed: all others would fail too."""
    for exchange in exchanges:
        if exchange.error or not exchange.arrivals:
            raise UserError(
                f"a first request failed ({side}): {exchange.error or 'no tokens were counted'}",
                "see the server's log, and whether it serves this very build",
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exchanges of one side (server or runtime) in one round."""

    side: Side
    clients: int
    round: int
    exchanges: list[Exchange]

    @property
    def good(self) -> list[Exchange]:
        """The exchanges with tokens and without an error."""
        return [
            exchange for exchange in self.exchanges if exchange.arrivals and exchange.error is None
        ]

    @property
    def tokens_per_second(self) -> float:
        """Of all clients, from the first request to the last token."""
        good = self.good
        if not good:
            return 0.0
        began = min(exchange.sent for exchange in self.exchanges)
        ended = max(exchange.arrivals[-1][0] for exchange in good)
        return sum(exchange.tokens for exchange in good) / (ended - began)


def summed_up(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each number of clients and side; the server's has its ratio to the runtime's."""
    rows = []
    for clients in dict.fromkeys(outcome.clients for outcome in outcomes):
        for side in SIDES:
            own = [
                outcome
                for outcome in outcomes
                if (outcome.clients, outcome.side) == (clients, side)
            ]
            if own:
                rows.append(_row(clients, side, own))
        rows[-1]["ratio"] = _ratio([outcome for outcome in outcomes if outcome.clients == clients])
    return rows


def _row(clients: int, side: Side, outcomes: Sequence[Outcome]) -> Row:
    good = [exchange for outcome in outcomes for exchange in outcome.good]
    bad = [exchange for outcome in outcomes for exchange in outcome.exchanges if exchange.error]
    gaps = [gap for exchange in good for gap in exchange.gaps()]
    return {
        "clients": clients,
        "side": side,
        "tokens_per_second": spread([outcome.tokens_per_second for outcome in outcomes]),
        "ttft_seconds": tail([exchange.ttft for exchange in good]) if good else None,
        "itl_seconds": tail(gaps) if gaps else None,
        "requests": len(good),
        "tokens": sum(exchange.tokens for exchange in good),
        "failed": len(bad),
        "first_error": bad[0].error if bad else None,
        "ratio": None,
    }


def _ratio(outcomes: Sequence[Outcome]) -> float | None:
    """Median over rounds of the server's throughput / the runtime's."""
    rates = {(outcome.side, outcome.round): outcome.tokens_per_second for outcome in outcomes}
    ratios = [
        rates["server", round] / rate
        for (side, round), rate in rates.items()
        if side == "in_process" and ("server", round) in rates and rate > 0
    ]
    return rounded(statistics.median(ratios)) if ratios else None


def tables(report: Row) -> Iterator[Table]:
    """A row for each number of clients and side; the failures below."""
    columns: dict[str, Column] = {
        "clients": "{clients}",
        "by": lambda row: str(row["side"]).replace("_", " "),
        "tokens/s": lambda row: number(row["tokens_per_second"]["median"]),
        "TTFT, ms": lambda row: _tail(row["ttft_seconds"]),
        "ITL, ms": lambda row: _tail(row["itl_seconds"]),
        "failed": "{failed}",
        "of in process": lambda row: f"{row['ratio']:.1%}" if row["ratio"] is not None else "",
    }
    rows, settings = report["sections"]["load"], report["settings"]
    errors = dict.fromkeys(row["first_error"] for row in rows if row["first_error"])
    notes = [
        f"prompts of {settings['prompt_tokens']} tokens, {settings['max_tokens']} in each answer, "
        f"{report['batch']} batch slots; times: median / 90th / 99th percentile of all rounds",
        *(f"a request failed: {error}" for error in errors),
    ]
    yield Table.of("load", rows, columns, notes)


def _tail(found: Row | None) -> str:
    return " / ".join(ms(found[key]) for key in ("median", "p90", "p99")) if found else "-"
