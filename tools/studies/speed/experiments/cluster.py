"""Compares deployments of one build: one process, and prefill and decode apart (NVIDIA Dynamo).

All have OpenAI's API and the same clients. One deployment runs at a time.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.bench.results import Column, Table, ms, number
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.deployment_load import idle_cores, measured, warm_up
from tools.studies.speed.deployments import Deployment, dynamo_versions, running
from tools.studies.speed.openai_clients import Workload
from tools.studies.speed.record import Results
from tools.studies.speed.setup import BUNDLED, Experiment, Setup

DEPLOYMENTS = (Deployment(), Deployment(1, 1), Deployment(1, 2))
ALONE = DEPLOYMENTS[0].name
NOTES = (
    "P + D: P prefill and D decode workers of Dynamo, and its frontend; each decode worker has the "
    "build's batch slots",
    "one deployment runs at a time, with the clients' threads on the same cores",
    "threads: of each worker. The frontend's come on top",
    "cores: processors' seconds a second of all processes of a deployment",
    "times: median / 99th percentile of a round's requests, and of these the median over rounds",
)
_WARM_REQUESTS = 4
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
    results.note(
        f"prompts of {options.prompt_tokens:,} tokens, {options.max_tokens} in each answer, "
        f"{options.batch} batch slots",
        *NOTES,
    )
    build = _build(setup, options)
    deadline = time.monotonic() + options.seconds
    for turn in range(options.rounds):
        for deployment in DEPLOYMENTS if turn % 2 == 0 else DEPLOYMENTS[::-1]:
            labels = {"deployment": deployment.name, "round": turn}
            cells: list[Row] = [labels | {"clients": one} for one in options.clients]
            if missing := [one for one in cells if not results.has("load", one)]:
                results.progress(deployment.name, _done(results), _total(options))
                _load(setup, options, results, build, deployment, missing, deadline)


def _load(
    setup: Setup,
    options: Options,
    results: Results,
    build: Build,
    deployment: Deployment,
    cells: Sequence[Row],
    deadline: float,
) -> None:
    """Start a deployment, and add a row for each number of clients."""
    threads = {"threads": deployment.threads(setup.threads)}
    with running(deployment, build.directory, setup.threads, setup.dynamo_python) as one:
        warm_up(one, workload(build, options, [options.rounds], 1, _WARM_REQUESTS))
        results.add("idle", {"deployment": deployment.name, "cores": idle_cores(one)})
        for cell in cells:
            _require_time(deadline, options)
            given = workload(build, options, [cell["round"]], cell["clients"], options.requests)
            results.add("load", cell | threads | measured(one, given))
            results.progress(deployment.name, _done(results), _total(options))


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


def workload(
    build: Build, options: Options, seed: Sequence[int], clients: int, requests: int
) -> Workload:
    """Random prompts, so that no two have a common prefix; the same for every deployment.

    requests: of all clients, at least two of each.
    """
    shape = clients, max(2, -(-requests // clients)), options.prompt_tokens
    vocab_size = build.manifest.model.vocab_size
    drawn = np.random.default_rng([*seed, clients]).integers(0, vocab_size, shape)
    return Workload(drawn.tolist(), options.max_tokens)


def summary(sections: Row) -> list[Row]:
    """Medians over rounds, and tokens/s against one process, round by round."""
    found: dict[tuple[int, str], list[Row]] = {}
    for one in sections.get("load", []):
        found.setdefault((one["clients"], one["deployment"]), []).append(one)
    rows = []
    for (clients, deployment), rounds in sorted(found.items(), key=lambda item: _order(*item[0])):
        alone = {one["round"]: one for one in found.get((clients, ALONE), [])}
        idle = [one for one in sections.get("idle", []) if one["deployment"] == deployment]
        labels = {"clients": clients, "deployment": deployment}
        rows.append(labels | _summed_up(rounds, alone) | {"idle_cores": _middle(idle, "cores")})
    return rows


def _order(clients: int, deployment: str) -> tuple[int, int]:
    return clients, [one.name for one in DEPLOYMENTS].index(deployment)


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
        **{name: _bytes(rounds, name) for name in ("row_bytes", "full_cache_bytes")},
        "of_full_cache": _middle(rounds, "of_full_cache"),
        "fetch_seconds": _middle(rounds, "fetch_seconds"),
        "x_one_process": six_digits(median(rates)) if rates else None,
    }


def _bytes(rounds: Sequence[Row], name: str) -> int | None:
    """All digits: they are the build's own."""
    values = [one[name] for one in rounds if name in one]
    return round(median(values)) if values else None


def _middle(rounds: Sequence[Row], name: str) -> float | None:
    values = [one[name] for one in rounds if one.get(name) is not None]
    return six_digits(median(values)) if values else None


def _at(rounds: Sequence[Row], name: str, at: str) -> float | None:
    values = [one[f"{name}_seconds"][at] for one in rounds if one[f"{name}_seconds"]]
    return six_digits(median(values)) if values else None


def tables(report: Row) -> Iterator[Table]:
    """A row for each number of clients and deployment; what was moved below."""
    rows = report["summary"]
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
        *(f"- {note}" for note in report["notes"]),
        *(f"- a request failed: {error}" for error in errors),
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
