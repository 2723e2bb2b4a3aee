"""Publishes the metrics on Triton's endpoint, beside Triton's own."""

from collections.abc import Callable, Mapping
from typing import Any

import triton_python_backend_utils as triton

from snapexport.serving.metrics import BUCKETS, METRICS, PREFIX, Counters, Metric

EVERY_SECONDS = 0.1
"""Time between two calls of `publish`: an update of one value takes 35 us."""


class Publisher:
    """Publishes changed metrics."""

    def __init__(
        self,
        labels: Mapping[str, str],
        counters: Counters,
        values: Callable[[], Mapping[str, float]],
    ) -> None:
        """values: returns the present gauges and counters."""
        self._counters = counters
        self._values = values
        self._kinds = {metric.name: metric.kind for metric in METRICS}
        self._published: dict[str, float] = {}
        try:
            # A family must outlive its metrics.
            self._families = {metric.name: _family(metric) for metric in METRICS}
            self._metrics = {metric.name: self._metric(metric, labels) for metric in METRICS}
        except triton.TritonModelException as error:
            triton.Logger.log_warn(f"no metrics of the model: {error}")
            self._metrics = {}

    def publish(self) -> None:
        """Publish changed metrics; does nothing if the server runs without metrics."""
        observations = self._counters.observations
        if not self._metrics:
            observations.clear()
            return
        while observations:
            name, seconds = observations.popleft()
            self._metrics[name].observe(seconds)
        for name, value in self._values().items():
            self._update(name, value)

    def _update(self, name: str, value: float) -> None:
        is_counter = self._kinds[name] == "COUNTER"
        published = self._published.get(name, 0 if is_counter else None)
        if value == published:
            return
        if is_counter:
            self._metrics[name].increment(value - (published or 0))
        else:
            self._metrics[name].set(value)
        self._published[name] = value

    def _metric(self, metric: Metric, labels: Mapping[str, str]) -> Any:
        buckets = {"buckets": list(BUCKETS)} if metric.kind == "HISTOGRAM" else {}
        return self._families[metric.name].Metric(labels=dict(labels), **buckets)


def _family(metric: Metric) -> Any:
    kind = getattr(triton.MetricFamily, metric.kind)
    return triton.MetricFamily(name=PREFIX + metric.name, description=metric.help, kind=kind)
