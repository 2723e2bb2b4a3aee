"""Sends responses to a client, and publishes metrics beside Triton's own, through Triton's API."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as triton
from numpy.typing import NDArray

from snapexport.serving.metrics import BUCKETS, METRICS, PREFIX, Metric
from snapexport.serving.triton.interface import CODE_IN_MESSAGE, Code

FINAL = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPort:
    """A `sender.Port` over the API of the Python backend."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._sends_code = parameters_of(request).get(CODE_IN_MESSAGE) is True

    def send(self, tensors: Mapping[str, NDArray[Any]], is_last: bool) -> None:
        self.pass_on([triton.Tensor(name, array) for name, array in tensors.items()], is_last)

    def pass_on(self, outputs: Sequence[Any], is_last: bool) -> None:
        """Send one response of Triton's own tensors."""
        self._sender.send(triton.InferenceResponse(outputs), flags=FINAL if is_last else 0)

    def fail(self, message: str, code: Code) -> None:
        text = f"{code}: {message}" if self._sends_code else message
        error = triton.TritonError(text, getattr(triton.TritonError, code))
        self._sender.send(triton.InferenceResponse(error=error), flags=FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def parameters_of(request: Any) -> dict[str, Any]:
    """A request's own parameters."""
    given: dict[str, Any] = json.loads(request.parameters() or "{}")
    return given


EVERY_SECONDS = 0.1
"""Time between two calls of `publish`: an update of one value takes 35 us."""


class Publisher:
    """Publishes changed metrics."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._observations: deque[tuple[str, float]] = deque()
        self._kinds = {metric.name: metric.kind for metric in METRICS}
        self._published: dict[str, float] = {}
        try:
            # A family must outlive its metrics.
            self._families = {metric.name: _family(metric) for metric in METRICS}
            self._metrics = {metric.name: self._metric(metric, labels) for metric in METRICS}
        except triton.TritonModelException as error:
            triton.Logger.log_warn(f"no metrics of the model: {error}")
            self._metrics = {}

    def observe(self, name: str, seconds: float) -> None:
        """Take an observation for a histogram, for the next `publish`. Any thread may call this."""
        if self._metrics:
            self._observations.append((name, seconds))

    def publish(self, values: Mapping[str, float]) -> None:
        """Publish changed gauges and counters; nothing if the server runs without metrics."""
        if not self._metrics:
            return
        while self._observations:
            name, seconds = self._observations.popleft()
            self._metrics[name].observe(seconds)
        for name, value in values.items():
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
