"""The model's metrics on the server's own endpoint, beside Triton's."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import triton_python_backend_utils as triton

PREFIX = "snapexport_"
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds of the histograms' buckets."""
_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name without the prefix, and what it tells."""

    name: str
    kind: Literal["GAUGE", "COUNTER", "HISTOGRAM"]
    help: str


METRICS = (
    Metric("requests_running", "GAUGE", "Requests that hold a slot"),
    Metric("requests_waiting", "GAUGE", "Requests that wait for a slot"),
    Metric("slots_used", "GAUGE", "Decode slots in use"),
    Metric("slots", "GAUGE", "Decode slots of the build"),
    Metric("cache_bytes", "GAUGE", "Bytes of all the slots' compressed caches"),
    Metric("full_cache_bytes", "GAUGE", "Bytes that the same slots would take uncompressed"),
    Metric("prompt_tokens_total", "COUNTER", "Prompt tokens taken in"),
    Metric("generated_tokens_total", "COUNTER", "Tokens generated"),
    Metric("requests_finished_total", "COUNTER", "Requests answered to their end"),
    Metric(
        "requests_cancelled_total", "COUNTER", "Requests ended by their client or their timeout"
    ),
    Metric("requests_failed_total", "COUNTER", "Requests that an error of the engine ended"),
    Metric("requests_refused_total", "COUNTER", "Requests that found no room in the queue"),
    Metric("queue_seconds", "HISTOGRAM", "From a request's arrival to its slot"),
    Metric(
        "time_to_first_token_seconds", "HISTOGRAM", "From a request's arrival to its first token"
    ),
    Metric("time_per_output_token_seconds", "HISTOGRAM", "A request's mean time for a later token"),
)


class Metrics:
    """Told values now and then; passes on what has changed."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """Raises TritonModelException where the server was started without metrics."""
        # A family must outlive its metrics.
        self._families = {metric.name: _family(metric) for metric in METRICS}
        self._metrics = {metric.name: self._metric(metric, labels) for metric in METRICS}
        self._kinds = {metric.name: metric.kind for metric in METRICS}
        self._told: dict[str, float] = {}
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the last time is long enough ago: an update of one value takes 35 us."""
        return time.monotonic() >= self._next

    def tell(self, values: Mapping[str, float]) -> None:
        """Gauges as they are now, counters as they stand in all."""
        self._next = time.monotonic() + _EVERY
        for name, value in values.items():
            if value != self._told.get(name, 0 if self._kinds[name] == "COUNTER" else None):
                self._pass_on(name, value)
                self._told[name] = value

    def observe(self, name: str, value: float) -> None:
        """One observation of a histogram."""
        self._metrics[name].observe(value)

    def _pass_on(self, name: str, value: float) -> None:
        if self._kinds[name] == "GAUGE":
            self._metrics[name].set(value)
        else:
            self._metrics[name].increment(value - self._told.get(name, 0))

    def _metric(self, metric: Metric, labels: Mapping[str, str]) -> Any:
        buckets = {"buckets": list(SECONDS)} if metric.kind == "HISTOGRAM" else {}
        return self._families[metric.name].Metric(labels=dict(labels), **buckets)


def _family(metric: Metric) -> Any:
    kind = getattr(triton.MetricFamily, metric.kind)
    return triton.MetricFamily(name=PREFIX + metric.name, description=metric.help, kind=kind)
