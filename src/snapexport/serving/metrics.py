"""Metrics of a served build: names, counts, and Prometheus' text form.

Knows neither the worker nor HTTP. The Triton backend publishes the same metrics through
Triton's own endpoint.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes

PREFIX = "snapexport_"
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds of the histograms' buckets, in seconds."""

Kind = Literal["GAUGE", "COUNTER", "HISTOGRAM"]
Observe = Callable[[str, float], None]
"""Takes an observation for a histogram: the metric's name, and seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name without the prefix, and its help text."""

    name: str
    kind: Kind
    help: str


METRICS = (
    Metric("requests_running", "GAUGE", "Requests that hold a batch slot"),
    Metric("requests_waiting", "GAUGE", "Requests that wait for a batch slot"),
    Metric("slots_used", "GAUGE", "Batch slots in use"),
    Metric("slots", "GAUGE", "Batch slots of the build"),
    Metric("cache_bytes", "GAUGE", "Bytes of all batch slots' compressed caches"),
    Metric("full_cache_bytes", "GAUGE", "Bytes that the same batch slots take uncompressed"),
    Metric("prompt_tokens_total", "COUNTER", "Prompt tokens of accepted requests"),
    Metric("generated_tokens_total", "COUNTER", "Tokens generated"),
    Metric("drafted_tokens_total", "COUNTER", "Tokens that were guessed ahead, and checked"),
    Metric("accepted_tokens_total", "COUNTER", "Those of them that were right"),
    Metric("requests_finished_total", "COUNTER", "Requests answered to their end"),
    Metric("requests_cancelled_total", "COUNTER", "Requests that a client or a timeout ended"),
    Metric("requests_failed_total", "COUNTER", "Requests that an error of the runtime ended"),
    Metric("requests_refused_total", "COUNTER", "Requests that found the queue full"),
    Metric("queue_seconds", "HISTOGRAM", "From a request's arrival to its batch slot"),
    Metric("time_to_first_token_seconds", "HISTOGRAM", "From arrival to the first token"),
    Metric("time_per_output_token_seconds", "HISTOGRAM", "Mean time of a request's later tokens"),
)
PROMPT_CACHE = {
    "hits": Metric("prompt_cache_hits_total", "COUNTER", "Prompts that began with kept tokens"),
    "tokens": Metric("prompt_cache_tokens_total", "COUNTER", "Tokens of these beginnings"),
    "bytes": Metric("prompt_cache_bytes", "GAUGE", "Bytes of the folder, when it was last used"),
    "evicted": Metric("prompt_cache_evictions_total", "COUNTER", "Chunks removed to make room"),
    "dropped": Metric("prompt_cache_dropped_total", "COUNTER", "Chunks that were not written"),
}
"""Metrics of a server with a prompt cache on disk, by what `LLM.prompt_cache_values` calls them."""

MEMORY = (
    Metric("memory_bound_bytes", "GAUGE", "Most resident bytes of the process, as it was counted"),
    Metric("resident_bytes", "GAUGE", "Resident bytes of the process"),
)
"""Metrics of a server whose memory has a bound."""


def constant_gauges(manifest: Manifest) -> dict[str, float]:
    """The gauges that a build's manifest determines."""
    cache = cache_bytes(manifest)
    return {
        "slots": manifest.batch,
        "cache_bytes": cache.decode,
        "full_cache_bytes": cache.full,
    }


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


class TextForm:
    """Holds the histograms, and writes all metrics in Prometheus' text form, version 0.0.4.

    One thread may observe while another one writes.
    """

    def __init__(self) -> None:
        names = (metric.name for metric in METRICS if metric.kind == "HISTOGRAM")
        self._histograms = {name: _Histogram() for name in names}

    def observe(self, name: str, seconds: float) -> None:
        """Count an observation."""
        self._histograms[name].observe(seconds)

    def write(
        self,
        values: Mapping[str, float],
        labels: Mapping[str, str],
        further: Iterable[Metric] = (),
    ) -> str:
        """All metrics, and those of `further` that have a value.

        values: the gauges and counters. labels: those of every metric.
        """
        label = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines = []
        for metric in (*METRICS, *(metric for metric in further if metric.name in values)):
            name = PREFIX + metric.name
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind.lower()}"]
            if metric.kind == "HISTOGRAM":
                lines += _buckets(name, label, self._histograms[metric.name])
            else:
                lines.append(f"{name}{{{label}}} {values[metric.name]}")
        return "\n".join(lines) + "\n"


def _buckets(name: str, label: str, histogram: _Histogram) -> list[str]:
    lines, count = [], 0
    bounds = [*map(str, BUCKETS), "+Inf"]
    for bound, added in zip(bounds, histogram.counts, strict=True):
        count += added
        lines.append(f'{name}_bucket{{{label},le="{bound}"}} {count}')
    return [*lines, f"{name}_sum{{{label}}} {histogram.sum}", f"{name}_count{{{label}}} {count}"]
