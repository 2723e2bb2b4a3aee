"""Exchanges, summed up: throughput, time to the first token, time between tokens, and ratios."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from snapexport.bench.load.exchange import Exchange
from snapexport.bench.spread import Spread, Tail, rounded

Side = Literal["in_process", "server"]
SIDES: tuple[Side, Side] = ("in_process", "server")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one side did with one round's workload of so many clients."""

    side: Side
    clients: int
    round: int
    exchanges: list[Exchange]

    @property
    def good(self) -> list[Exchange]:
        """Those that brought tokens, and no error."""
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


def summed_up(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A row for each number of clients and side; the server's with its share of the other's."""
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
        "first_token_seconds": Tail.of([one.first for one in good]).report() if good else None,
        "between_tokens_seconds": Tail.of(gaps).report() if gaps else None,
        "requests": len(good),
        "tokens": sum(one.tokens for one in good),
        "failed": len(bad),
        "first_error": bad[0].error if bad else None,
        "ratio": None,
    }


def _ratio(outcomes: Sequence[Outcome]) -> float | None:
    """Median over rounds of the server's throughput by that in process, round by round."""
    rates = {(one.side, one.round): one.tokens_per_second for one in outcomes}
    ratios = [
        rates["server", round] / alone
        for (side, round), alone in rates.items()
        if side == "in_process" and ("server", round) in rates and alone > 0
    ]
    return rounded(statistics.median(ratios)) if ratios else None
