"""Simulates prefill and decode apart, for models and links that this machine does not have.

Nothing of it was run on devices or a network: times of prefill and decode are rooflines of a stated
accelerator, sizes are the planner's, and a link has its whole rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from snapexport.errors import UserError
from snapexport.measure.bench.results import Column, Table, number
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.experiments.equal_memory import PAPER
from tools.studies.speed.large_models import H200, MODELS, Published, Worker, workers
from tools.studies.speed.record import Results, tail
from tools.studies.speed.setup import Experiment, Setup
from tools.studies.speed.simulation import Cluster, simulate

Bound = Literal["prefill", "link", "decode"]
Workers = dict[str, Worker]

NOTES = (
    "simulated: no device and no network was there",
    f"rooflines of {H200.name}: {H200.source}",
    "slots: by the planner for the memory of a worker's devices, without those for landing rows",
    "a link carries one row at a time, at its whole rate; link in use: the busiest, at full load",
    "tokens/s: all requests wait from the start; TTFT: they arrive at random (Poisson)",
)


@dataclass(frozen=True)
class Options:
    """tokens: of an answer, which ends at L_max. links: Gb/s of a worker. deployments: prefill and
    decode workers. x_roofline: how many times the roofline prefill and decode steps take.
    row_seconds: of a row beside the link: messages and the like. prefill_rows, landing_rows: see
    `Cluster`. load: share of what full rows allow, at which TTFT is taken.
    """

    L_max: int = 131072
    kv_budget: int = 32768
    tokens: int = 1024
    links: tuple[float, ...] = (100, 400)
    deployments: tuple[tuple[int, int], ...] = ((1, 1), (1, 2), (8, 1))
    x_roofline: float = 1.0
    row_seconds: float = 0.0
    prefill_rows: int = 2
    landing_rows: int = 2
    requests: int = 400
    load: float = 0.7
    seed: int = 0
    rounds: int = 1

    def __post_init__(self) -> None:
        least = {"tokens": 2, "prefill_rows": 1, "landing_rows": 1, "requests": 8}
        wrong = [name for name, bound in least.items() if getattr(self, name) < bound]
        wrong += [name for name in ("x_roofline", "load") if not getattr(self, name) > 0]
        wrong += [] if self.row_seconds >= 0 else ["row_seconds"]
        wrong += [] if all(one > 0 for one in self.links) else ["links"]
        wrong += [] if all(min(one) >= 1 for one in self.deployments) else ["deployments"]
        if wrong:
            raise UserError(f"--set: {wrong[0]} is too small", "use a larger one")
        if self.tokens >= self.L_max:
            raise UserError(f"--set: tokens={self.tokens} leaves no prompt", "use fewer")


def run(setup: Setup, options: Options, results: Results) -> None:
    """One model after the other: its rows, then its deployments."""
    results.about["simulated"] = True
    prompt = options.L_max - options.tokens
    results.note(
        *NOTES,
        f"prompts of {prompt:,} tokens, {options.tokens:,} in each answer; prefill and decode take "
        f"{options.x_roofline:g} x their rooflines",
        f"TTFT: median / 99th percentile, at {options.load:.0%} of what the slowest part allows "
        "with full rows",
    )
    for published in MODELS:
        results.progress(published.name, MODELS.index(published), len(MODELS))
        full, compressed = workers(published, H200, options.L_max, options.kv_budget, prompt)
        found = {"full": full, f"1/{options.L_max // options.kv_budget}": compressed}
        _require_slots(published, found, options)
        for link in options.links:
            for name, worker in found.items():
                labels = {"model": published.name, "link": link, "row": name}
                results.add("rows", labels | transferred(worker, link, options))
            for deployment in options.deployments:
                for row in simulated(found, deployment, link, options):
                    results.add("deployments", {"model": published.name, "link": link} | row)
    for row in of_table_5():
        results.add("table_5", row)
    results.progress("all", len(MODELS), len(MODELS))


def of_table_5() -> Iterator[Row]:
    """Decode at the batches of SnapStream's Table 5: by rooflines, beside what it gives."""
    for prompt, few, slow, many, fast in PAPER:
        full, compressed = workers(MODELS[-1], H200, prompt, prompt // 4, prompt)
        rates = few / full.step_seconds(few), many / compressed.step_seconds(many)
        yield {
            "prompt": prompt,
            "slots_full": few,
            "slots": many,
            "published_x_full": six_digits(fast / slow),
            "tokens_per_second_full": six_digits(rates[0]),
            "tokens_per_second": six_digits(rates[1]),
            "x_full": six_digits(rates[1] / rates[0]),
        }


def _require_slots(published: Published, found: Workers, options: Options) -> None:
    for name, worker in found.items():
        if worker.slots <= options.landing_rows:
            raise UserError(
                f"{published.name}: {name} rows leave no batch slot beside landing rows",
                "--set landing_rows=1, or a smaller L_max",
            )


def transferred(worker: Worker, link: float, options: Options) -> Row:
    """One request by itself: the parts of its TTFT, and the rate at which rows fill a link."""
    cluster = cluster_of(worker, (1, 1), link, options)
    transfer = cluster.transfer_seconds
    rest = cluster.prefill_seconds + options.row_seconds + cluster.copy_seconds
    return {
        "row_bytes": worker.row_bytes,
        "prefill_seconds": six_digits(cluster.prefill_seconds),
        "transfer_seconds": six_digits(transfer),
        "copy_seconds": six_digits(cluster.copy_seconds),
        "ttft_seconds": six_digits(rest + transfer),
        "share": six_digits(transfer / (rest + transfer)),
        # Sent chunk by chunk while prefill goes on, which a compressed row can't be.
        "behind_prefill_seconds": six_digits(max(0.0, transfer - cluster.prefill_seconds)),
        "saturated_per_second": six_digits(1 / transfer),
    }


def cluster_of(
    worker: Worker, deployment: tuple[int, int], link: float, options: Options
) -> Cluster:
    """The simulation's parameters."""
    prefill, decode = deployment
    slower = options.x_roofline
    return Cluster(
        prefill=prefill,
        decode=decode,
        prefill_seconds=slower * worker.prefill_seconds,
        prefill_rows=options.prefill_rows,
        row_bytes=worker.row_bytes,
        link=link * 1e9 / 8,
        slots=worker.slots - options.landing_rows,
        landing_rows=options.landing_rows,
        step_seconds=_Steps(worker, slower),
        row_seconds=options.row_seconds,
        copy_seconds=slower * worker.copy_seconds,
    )


class _Steps:
    """Seconds of decode steps, each computed once."""

    def __init__(self, worker: Worker, slower: float) -> None:
        self._worker, self._slower = worker, slower
        self._known: dict[int, float] = {}

    def __call__(self, active: int) -> float:
        if active not in self._known:
            self._known[active] = self._slower * self._worker.step_seconds(active)
        return self._known[active]


def limits(cluster: Cluster, tokens: int) -> dict[Bound, float]:
    """Requests a second that each part allows by itself."""
    answers = (tokens - 1) * cluster.step_seconds(cluster.slots)
    return {
        "prefill": cluster.prefill / cluster.prefill_seconds,
        "link": min(cluster.prefill, cluster.decode) / cluster.transfer_seconds,
        "decode": cluster.decode * cluster.slots / answers,
    }


def simulated(
    found: Workers, deployment: tuple[int, int], link: float, options: Options
) -> Iterator[Row]:
    """A row for each cache: at full load, then TTFT at a load that all caches bear."""
    clusters = {name: cluster_of(one, deployment, link, options) for name, one in found.items()}
    least = min(min(limits(one, options.tokens).values()) for one in clusters.values())
    gaps = np.random.default_rng(options.seed).exponential(
        1 / (options.load * least), options.requests
    )
    for name, cluster in clusters.items():
        allowed = limits(cluster, options.tokens)
        # Enough that all batch slots are in use for most of the time.
        enough = max(options.requests, 8 * cluster.decode * cluster.slots)
        full_load = simulate(cluster, [0.0] * enough, options.tokens)
        at_random = simulate(cluster, np.cumsum(gaps).tolist(), options.tokens)
        rate = full_load.steady_rate
        yield {
            "deployment": f"{deployment[0]} + {deployment[1]}",
            "row": name,
            "slots": cluster.slots,
            **{f"{part}_per_second": six_digits(one) for part, one in allowed.items()},
            "bound": min(allowed, key=lambda part: allowed[part]),
            "requests_per_second": six_digits(rate),
            "tokens_per_second": six_digits(rate * options.tokens),
            "link_occupancy": six_digits(full_load.link_occupancy),
            "offered_per_second": six_digits(options.load * least),
            "ttft_seconds": tail([one.ttft for one in at_random.requests]),
        }


def summary(sections: Row) -> list[Row]:
    """Tokens/s with compressed rows against those with full rows."""
    rates: dict[tuple[str, float, str], Row] = {}
    for row in sections.get("deployments", []):
        rates.setdefault((row["model"], row["link"], row["deployment"]), {})[row["row"]] = row
    found = []
    for (model, link, deployment), rows in rates.items():
        full = rows.pop("full", None)
        for name, row in rows.items() if full else ():
            ratio = row["tokens_per_second"] / full["tokens_per_second"]
            labels = {"model": model, "link": link, "deployment": deployment, "row": name}
            found.append(labels | {"x_full": six_digits(ratio)})
    return found


def tables(report: Row) -> Iterator[Table]:
    """Rows on links, then deployments."""
    of_rows: dict[str, Column] = {
        "model": "{model}",
        "row": "{row}",
        "GiB": lambda row: f"{row['row_bytes'] / 2**30:.2f}",
        "Gb/s": "{link:g}",
        "transfer simulated, s": lambda row: number(row["transfer_seconds"]),
        "prefill by roofline, s": lambda row: number(row["prefill_seconds"]),
        "TTFT simulated, s": lambda row: number(row["ttft_seconds"]),
        "transfer / TTFT": "{share:.1%}",
        "rows/s that fill a link": lambda row: number(row["saturated_per_second"]),
    }
    yield Table.of("rows, simulated", report["sections"]["rows"], of_rows)
    ratios = {_key(row): row["x_full"] for row in report["summary"]}
    of_deployments: dict[str, Column] = {
        "model": "{model}",
        "Gb/s": "{link:g}",
        "deployment": "{deployment}",
        "row": "{row}",
        "slots": "{slots}",
        "requests/s: prefill, link, decode allow": lambda row: ", ".join(
            number(row[f"{part}_per_second"]) for part in ("prefill", "link", "decode")
        ),
        "bound by": "{bound}",
        "tokens/s simulated": lambda row: number(row["tokens_per_second"]),
        "x full rows": lambda row: f"{ratios[_key(row)]:.2f}" if _key(row) in ratios else "",
        "link in use": "{link_occupancy:.1%}",
        "TTFT simulated, s": lambda row: " / ".join(
            number(row["ttft_seconds"][at]) for at in ("median", "p99")
        ),
    }
    rows, notes = report["sections"]["deployments"], [f"- {note}" for note in report["notes"]]
    yield Table.of("deployments, simulated", rows, of_deployments, [*notes, ""])
    of_paper: dict[str, Column] = {
        "prompt": "{prompt:,}",
        "requests, full": "{slots_full}",
        "requests, 1/4": "{slots}",
        "tokens/s by rooflines, full": lambda row: number(row["tokens_per_second_full"]),
        "tokens/s by rooflines, 1/4": lambda row: number(row["tokens_per_second"]),
        "x full, by rooflines": "{x_full:.2f}",
        "x full, SnapStream's Table 5": "{published_x_full:.2f}",
    }
    yield Table.of("SnapStream's Table 5", report["sections"]["table_5"], of_paper)


def _key(row: Row) -> tuple[str, float, str, str]:
    return row["model"], row["link"], row["deployment"], row["row"]


SIMULATE = Experiment(
    help="simulation of Llama-3.1-8B and DeepSeek-R1, prefill and decode apart, over links",
    cpu=Options(),
    quick=Options(requests=40, links=(100,), deployments=((1, 1),)),
    run=run,
    summary=summary,
    tables=tables,
)
