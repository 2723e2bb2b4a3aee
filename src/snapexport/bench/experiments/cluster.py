"""Compares deployments of one build: one process, and prefill and decode apart (NVIDIA Dynamo).

All have OpenAI's API and the same clients. One deployment runs at a time: a Dynamo worker takes
processor time even while it is idle.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snapexport.bench.clients import Exchange, Workload
from snapexport.bench.deployments import NAME, Deployment, Running, dynamo_versions, running
from snapexport.bench.load import Outcome
from snapexport.bench.openai_clients import OpenAIModel
from snapexport.bench.results import Results
from snapexport.bench.setup import BUNDLED, Experiment, Setup
from snapexport.bench.tables import Column, Table, ms, number
from snapexport.bench.turns import Row, rounded, tail
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError

DEPLOYMENTS = (Deployment(), Deployment(1, 1), Deployment(1, 2))
ALONE = DEPLOYMENTS[0].name
NOTES = (
    "one deployment runs at a time, with the clients' threads on the same cores; P + D: P prefill "
    "and D decode workers of Dynamo, and its frontend",
    "threads: of each worker; the machine's are divided among a deployment's workers, and each has "
    "at least one. The frontend and NIXL's progress threads come on top",
    "cores: processors' seconds of all processes of the deployment, a second",
    "a deployment has the build's batch slots once for each decode worker, and once in one process",
)
_WARM_REQUESTS = 4
_IDLE_SECONDS = 2.0
_TIMES = ("ttft", "itl", "pause")


@dataclass(frozen=True)
class Options:
    """clients: concurrent ones. requests: of all of them in a round, at least 2 of each.

    prompt_tokens, max_tokens: of a request. seconds: after which nothing more is begun.
    """

    checkpoint: str = BUNDLED
    L_max: int = 2064
    kv_budget: int = 128
    batch: int = 8
    chunk: int = 256
    clients: tuple[int, ...] = (1, 4, 16)
    requests: int = 32
    prompt_tokens: int = 1800
    max_tokens: int = 128
    rounds: int = 3
    seconds: float = 900

    def __post_init__(self) -> None:
        if self.prompt_tokens > self.L_max:
            raise UserError(
                f"prompts of {self.prompt_tokens} tokens do not fit a build for {self.L_max}",
                "--set prompt_tokens=N, or L_max=N",
            )


def run(setup: Setup, options: Options, results: Results) -> None:
    """Round after round: each deployment is started, loaded with all clients, and ended."""
    versions = dynamo_versions(setup.dynamo_python or Path(sys.executable))
    results.machine["versions"] |= versions
    results.note(*NOTES)
    build = _build(setup, options)
    deadline = time.monotonic() + options.seconds
    for turn in range(options.rounds):
        for deployment in DEPLOYMENTS if turn % 2 == 0 else DEPLOYMENTS[::-1]:
            labels = {"deployment": deployment.name, "round": turn}
            cells = [{**labels, "clients": clients} for clients in options.clients]
            missing = [one for one in cells if not results.has("load", one)]
            if not missing:
                continue
            results.tell(f"{deployment.name}, round {turn + 1}", _done(results), _total(options))
            with running(deployment, build.directory, setup.threads, setup.dynamo_python) as one:
                _warm_up(one, build, options)
                results.add("idle", labels | {"cores": _idle_cores(one)})
                for cell in missing:
                    _require_time(deadline, options)
                    threads = {"threads": deployment.threads(setup.threads)}
                    results.add("load", cell | threads | measured(one, build, options, cell))
                    results.tell(deployment.name, _done(results), _total(options))


def _build(setup: Setup, options: Options) -> Build:
    builds = setup.builds(options.checkpoint, chunk=options.chunk)
    return builds.served(options.L_max, options.kv_budget, options.batch)


def _done(results: Results) -> int:
    return len(results.sections["load"])


def _total(options: Options) -> int:
    return options.rounds * len(DEPLOYMENTS) * len(options.clients)


def _require_time(deadline: float, options: Options) -> None:
    if time.monotonic() > deadline:
        raise UserError(
            f"{options.seconds:g} s are over",
            "what was measured is kept: --resume, or --set seconds=N",
        )


def _warm_up(one: Running, build: Build, options: Options) -> None:
    """Some requests that are not counted. Raises UserError if one fails: all others would."""
    given = workload(build, options, [options.rounds], 1, _WARM_REQUESTS)
    for exchange in OpenAIModel(one.openai, NAME).drive(given, time.perf_counter):
        if exchange.error:
            raise UserError(f"a first request failed: {exchange.error}", "see its log")


def _idle_cores(one: Running) -> float:
    """Processors' seconds a second without a request."""
    before = one.cpu_seconds()
    time.sleep(_IDLE_SECONDS)
    return rounded((one.cpu_seconds() - before) / _IDLE_SECONDS)


def workload(
    build: Build, options: Options, seed: Sequence[int], clients: int, requests: int
) -> Workload:
    """Random prompts, so that no two have a common prefix; the same for every deployment."""
    shape = clients, requests, options.prompt_tokens
    vocab_size = build.manifest.model.vocab_size
    drawn = np.random.default_rng([*seed, clients]).integers(0, vocab_size, shape)
    return Workload(drawn.tolist(), options.max_tokens)


def measured(one: Running, build: Build, options: Options, cell: Row) -> Row:
    """One round of so many clients: a row of results."""
    clients, turn = int(cell["clients"]), int(cell["round"])
    requests = max(2, -(-options.requests // clients))
    given = workload(build, options, [turn], clients, requests)
    before, cpu, began = one.moved(), one.cpu_seconds(), time.perf_counter()
    exchanges = OpenAIModel(one.openai, NAME).drive(given, time.perf_counter)
    seconds, spent = time.perf_counter() - began, one.cpu_seconds() - cpu
    after = one.moved()
    moved = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return row(exchanges, clients, turn) | fetched(moved) | {"cores": rounded(spent / seconds)}


def row(exchanges: Sequence[Exchange], clients: int, turn: int) -> Row:
    """Rates and times of the requests that did not fail; times over requests, in seconds."""
    outcome = Outcome("server", clients, turn, list(exchanges))
    good = outcome.good
    errors = [one.error for one in exchanges if one.error]
    times = {
        "ttft": [one.ttft for one in good],
        "itl": [one.mean_itl for one in good],
        "pause": [one.pause for one in good],
    }
    return {
        "tokens_per_second": rounded(outcome.tokens_per_second),
        **{f"{name}_seconds": tail(found) if found else None for name, found in times.items()},
        "requests": len(good),
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
    }


def fetched(moved: Row) -> Row:
    """Bytes and seconds of a fetched row, and the full caches' bytes; empty in one process."""
    if not (rows := moved.get("rows_moved_total")):
        return {}
    nbytes, full = moved["row_bytes_total"], moved["row_full_cache_bytes_total"]
    return {
        "rows": int(rows),
        "row_bytes": rounded(nbytes / rows),
        "full_cache_bytes": rounded(full / rows),
        "of_full_cache": rounded(nbytes / full),
        "fetch_seconds": rounded(moved["row_seconds_total"] / rows),
    }


def summary(sections: Row) -> list[Row]:
    """Medians over rounds, and tokens/s and TTFT against one process, round by round."""
    found: dict[tuple[int, str], list[Row]] = {}
    for one in sections.get("load", []):
        found.setdefault((one["clients"], one["deployment"]), []).append(one)
    rows = []
    for (clients, deployment), rounds in sorted(found.items(), key=lambda item: item[0][0]):
        alone = {one["round"]: one for one in found.get((clients, ALONE), [])}
        idle = [one for one in sections.get("idle", []) if one["deployment"] == deployment]
        labels = {"clients": clients, "deployment": deployment}
        rows.append(labels | _summed_up(rounds, alone) | {"idle_cores": _middle(idle, "cores")})
    return rows


def _summed_up(rounds: Sequence[Row], alone: dict[int, Row]) -> Row:
    pairs = [(one, alone[one["round"]]) for one in rounds if one["round"] in alone]
    rates = [
        one["tokens_per_second"] / other["tokens_per_second"]
        for one, other in pairs
        if other["tokens_per_second"]
    ]
    return {
        "threads": rounds[0]["threads"],
        "tokens_per_second": _middle(rounds, "tokens_per_second"),
        **{f"{one}_{at}": _at(rounds, one, at) for one in _TIMES for at in ("median", "p99")},
        "cores": _middle(rounds, "cores"),
        "requests": sum(one["requests"] for one in rounds),
        "failed": sum(one["failed"] for one in rounds),
        **{
            name: _middle(rounds, name)
            for name in ("row_bytes", "full_cache_bytes", "of_full_cache", "fetch_seconds")
        },
        "x_one_process": rounded(median(rates)) if rates else None,
    }


def _middle(rounds: Sequence[Row], name: str) -> float | None:
    values = [one[name] for one in rounds if one.get(name) is not None]
    return rounded(median(values)) if values else None


def _at(rounds: Sequence[Row], name: str, at: str) -> float | None:
    values = [one[f"{name}_seconds"][at] for one in rounds if one[f"{name}_seconds"]]
    return rounded(median(values)) if values else None


def tables(report: Row) -> Iterator[Table]:
    """A row for each number of clients and deployment; what was moved below."""
    rows, settings = report["summary"], report["settings"]
    columns: dict[str, Column] = {
        "clients": "{clients}",
        "deployment": "{deployment}",
        "threads": "{threads}",
        "tokens/s": lambda row: number(row["tokens_per_second"]),
        "x one process": lambda row: f"{row['x_one_process']:.2f}" if row["x_one_process"] else "",
        "TTFT, ms": lambda row: _both(row, "ttft"),
        "ITL, ms": lambda row: _both(row, "itl"),
        "pause, ms": lambda row: _both(row, "pause"),
        "cores": "{cores:.2f}",
        "cores, idle": "{idle_cores:.2f}",
        "failed": "{failed} of {requests}",
    }
    errors = dict.fromkeys(
        row["first_error"] for row in report["sections"]["load"] if row["first_error"]
    )
    notes = [
        f"- prompts of {settings['prompt_tokens']:,} tokens, {settings['max_tokens']} in each "
        f"answer, {settings['batch']} batch slots a worker; times: median / 99th percentile",
        *(f"- {note}" for note in report["notes"]),
        *(f"- a request failed: {error}" for error in errors),
        "",
    ]
    shown = [row | {"requests": row["requests"] + row["failed"]} for row in rows]
    yield Table.of("deployments", shown, columns, notes)
    moved: dict[str, Column] = {
        "clients": "{clients}",
        "deployment": "{deployment}",
        "bytes moved a request": "{row_bytes:,.0f}",
        "its full cache": "{full_cache_bytes:,.0f}",
        "moved / full": "{of_full_cache:.4f}",
        "fetch, ms": lambda row: ms(row["fetch_seconds"]),
    }
    yield Table.of("moved", [row for row in rows if row["row_bytes"]], moved)


def _both(row: Row, name: str) -> str:
    return f"{ms(row[f'{name}_median'])} / {ms(row[f'{name}_p99'])}"


def builds(setup: Setup, options: Options) -> Iterator[Any]:
    """The one build."""
    yield _build(setup, options)


CLUSTER = Experiment(
    help="one process against prefill and decode apart (Dynamo), for 1, 4 and 16 clients",
    cpu=Options(),
    quick=Options(
        L_max=512, batch=2, prompt_tokens=300, max_tokens=8, requests=4, clients=(1, 2), rounds=1
    ),
    run=run,
    summary=summary,
    tables=tables,
    builds=builds,
)
