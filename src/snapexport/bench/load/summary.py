"""Summarizes exchanges: throughput, TTFT, ITL, and the ratio of the server to the runtime."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from snapexport.bench.load.exchange import Exchange
from snapexport.bench.spread import Spread, Tail, rounded
from snapexport.bench.tables import Table, ms, number

Side = Literal["in_process", "server"]
SIDES: tuple[Side, Side] = ("in_process", "server")


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
        return [one for one in self.exchanges if one.arrivals and one.error is None]

    @property
    def tokens_per_second(self) -> float:
        """Of all clients, from the first request to the last token."""
        good = self.good
        if not good:
            return 0.0
        began = min(one.sent for one in self.exchanges)
        ended = max(one.arrivals[-1][0] for one in good)
        return sum(one.tokens for one in good) / (ended - began)


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """A row for each number of clients and side; the failures below."""
    heads = ["clients", "by", "tokens/s", "TTFT, ms", "ITL, ms", "failed", "of in process"]
    rows = report["sections"]["load"]
    cells = [
        [
            str(row["clients"]),
            row["side"].replace("_", " "),
            number(row["tokens_per_second"]["median"]),
            _tail(row["ttft_seconds"]),
            _tail(row["itl_seconds"]),
            str(row["failed"]),
            f"{row['ratio']:.1%}" if row["ratio"] is not None else "",
        ]
        for row in rows
    ]
    errors = dict.fromkeys(row["first_error"] for row in rows if row["first_error"])
    settings = report["settings"]
    notes = [
        f"prompts of {settings['prompt_tokens']} tokens, {settings['max_tokens']} in each answer, "
        f"{report['batch']} batch slots; times: median / 90th / 99th percentile of all rounds",
        *(f"a request failed: {error}" for error in errors),
    ]
    yield Table("load", heads, cells, notes)


def _tail(tail: dict[str, float] | None) -> str:
    return " / ".join(ms(tail[key]) for key in ("median", "p90", "p99")) if tail else "-"


def summed_up(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A row for each number of clients and side; the server's has its ratio to the runtime's."""
    rows = []
    for clients in dict.fromkeys(one.clients for one in outcomes):
        for side in SIDES:
            own = [one for one in outcomes if (one.clients, one.side) == (clients, side)]
            if own:
                rows.append(_row(clients, side, own))
        rows[-1]["ratio"] = _ratio([one for one in outcomes if one.clients == clients])
    return rows


def _row(clients: int, side: Side, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    good = [exchange for outcome in outcomes for exchange in outcome.good]
    bad = [one for outcome in outcomes for one in outcome.exchanges if one.error]
    gaps = [gap for exchange in good for gap in exchange.gaps()]
    return {
        "clients": clients,
        "side": side,
        "tokens_per_second": Spread.of([one.tokens_per_second for one in outcomes]).report(),
        "ttft_seconds": Tail.of([one.ttft for one in good]).report() if good else None,
        "itl_seconds": Tail.of(gaps).report() if gaps else None,
        "requests": len(good),
        "tokens": sum(one.tokens for one in good),
        "failed": len(bad),
        "first_error": bad[0].error if bad else None,
        "ratio": None,
    }


def _ratio(outcomes: Sequence[Outcome]) -> float | None:
    """Median over rounds of the server's throughput / the runtime's."""
    rates = {(one.side, one.round): one.tokens_per_second for one in outcomes}
    ratios = [
        rates["server", round] / alone
        for (side, round), alone in rates.items()
        if side == "in_process" and ("server", round) in rates and alone > 0
    ]
    return rounded(statistics.median(ratios)) if ratios else None
