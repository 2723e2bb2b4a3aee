"""Loads a running deployment by OpenAI's API, and counts what it moved and took meanwhile."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

from snapexport.errors import UserError
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.deployments import NAME, Running
from tools.studies.speed.openai_clients import Exchange, OpenAIModel, Workload
from tools.studies.speed.record import tail

IDLE_SECONDS = 2.0


def warm_up(one: Running, workload: Workload) -> None:
    """Send requests that are not counted. Raises UserError if one fails: all others would."""
    for exchange in OpenAIModel(one.openai, NAME).drive(workload, time.perf_counter):
        if exchange.error:
            raise UserError(
                f"a first request failed: {exchange.error}",
                "see that the build's context has room for prompt and answer",
            )


def idle_cores(one: Running) -> float:
    """Processors' seconds a second without a request."""
    before = one.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return six_digits((one.cpu_seconds() - before) / IDLE_SECONDS)


def measured(one: Running, workload: Workload) -> Row:
    """One round of the workload's clients: a row of results."""
    before, cpu, began = one.moved(), one.cpu_seconds(), time.perf_counter()
    exchanges = OpenAIModel(one.openai, NAME).drive(workload, time.perf_counter)
    seconds, spent = time.perf_counter() - began, one.cpu_seconds() - cpu
    moved = {name: value - before.get(name, 0.0) for name, value in one.moved().items()}
    return summed_up(exchanges) | fetched(moved) | {"cores": six_digits(spent / seconds)}


def summed_up(exchanges: Sequence[Exchange]) -> Row:
    """Rates and times of the requests that did not fail; times over requests, in seconds."""
    good = [one for one in exchanges if one.arrivals and one.error is None]
    errors = [one.error for one in exchanges if one.error]
    times = {
        "ttft": [one.ttft for one in good],
        "itl": [mean_itl(one) for one in good],
        "pause": [pause(one) for one in good],
    }
    return {
        "tokens_per_second": six_digits(tokens_per_second(exchanges, good)),
        **{f"{name}_seconds": tail(found) if found else None for name, found in times.items()},
        "requests": len(good),
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
    }


def tokens_per_second(exchanges: Sequence[Exchange], good: Sequence[Exchange]) -> float:
    """Of all clients, from the first request to the last token of the good ones."""
    if not good:
        return 0.0
    began = min(exchange.sent for exchange in exchanges)
    ended = max(exchange.arrivals[-1][0] for exchange in good)
    return sum(exchange.tokens for exchange in good) / (ended - began)


def fetched(moved: Mapping[str, float]) -> Row:
    """Bytes and seconds of a fetched row, and the full caches' bytes; empty in one process."""
    if not (rows := moved.get("rows_moved_total")):
        return {}
    nbytes, full = moved["row_bytes_total"], moved["row_full_cache_bytes_total"]
    return {
        "rows": int(rows),
        "row_bytes": round(nbytes / rows),
        "full_cache_bytes": round(full / rows),
        "of_full_cache": six_digits(nbytes / full),
        "fetch_seconds": six_digits(moved["row_seconds_total"] / rows),
    }


def mean_itl(one: Exchange) -> float:
    """Seconds from the first to the last answer / tokens after the first."""
    return (one.arrivals[-1][0] - one.arrivals[0][0]) / max(1, one.tokens - 1)


def pause(one: Exchange) -> float:
    """The longest time between two answers: the request's decode was held up."""
    times = [at for at, _ in one.arrivals]
    return max((at - before for before, at in pairwise(times)), default=0.0)
