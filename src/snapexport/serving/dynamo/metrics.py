"""Counts what a Dynamo worker has moved, in Prometheus' text form.

bytes_moved / full_cache_bytes is what compression leaves to move. Knows neither NIXL nor Dynamo.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes
from snapexport.serving.metrics import PREFIX

HELP = {
    "rows_moved_total": "Prompts whose caches were fetched from a prefill worker",
    "rows_failed_total": "Prompts whose caches could not be fetched",
    "row_bytes_total": "Bytes of the fetched caches",
    "row_full_cache_bytes_total": "Bytes that the same prompts' full caches have",
    "row_seconds_total": "Seconds that the fetching took",
    "leases": "Prompts that wait in batch slots to be fetched",
    "leases_expired_total": "Prompts that nobody fetched in time",
}


@dataclass(slots=True)
class Moved:
    """Rows that this worker has fetched. full_bytes_per_token: of an uncompressed cache."""

    full_bytes_per_token: float
    rows: int = 0
    failed: int = 0
    nbytes: int = 0
    full_bytes: float = 0
    seconds: float = 0

    @classmethod
    def by(cls, manifest: Manifest) -> "Moved":
        """Counts of a build's worker."""
        tokens = manifest.batch * manifest.geometry.L_max
        return cls(cache_bytes(manifest).full / tokens)

    def add(self, nbytes: int, prompt_length: int, seconds: float) -> None:
        """Count one fetched row."""
        self.rows += 1
        self.nbytes += nbytes
        self.full_bytes += self.full_bytes_per_token * prompt_length
        self.seconds += seconds

    def values(self) -> dict[str, float]:
        """The counts by their metrics' names."""
        return {
            "rows_moved_total": self.rows,
            "rows_failed_total": self.failed,
            "row_bytes_total": self.nbytes,
            "row_full_cache_bytes_total": self.full_bytes,
            "row_seconds_total": self.seconds,
        }


def text_form(values: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Prometheus' text form, version 0.0.4."""
    of_all = ",".join(f'{name}="{value}"' for name, value in labels.items())
    lines = []
    for name, value in values.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {PREFIX}{name} {HELP[name]}", f"# TYPE {PREFIX}{name} {kind}"]
        lines.append(f"{PREFIX}{name}{{{of_all}}} {value}")
    return "\n".join(lines) + "\n"
