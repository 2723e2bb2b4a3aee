"""Counts the rows that a Dynamo worker has fetched.

row_bytes_total / row_full_cache_bytes_total is the share of a full cache that compression leaves to
move. Knows neither NIXL nor Dynamo.
"""

from dataclasses import dataclass

from snapexport.contract.manifest import Manifest
from snapexport.contract.memory import cache_bytes
from snapexport.serving.metrics import Metric

METRICS = (
    Metric("rows_moved_total", "COUNTER", "Prompts whose caches were fetched"),
    Metric("rows_failed_total", "COUNTER", "Prompts whose caches could not be fetched"),
    Metric("row_bytes_total", "COUNTER", "Bytes of the fetched caches"),
    Metric("row_full_cache_bytes_total", "COUNTER", "Bytes of the same prompts' full caches"),
    Metric("row_seconds_total", "COUNTER", "Seconds of fetching"),
    Metric("leases", "GAUGE", "Prompts that wait in batch slots to be fetched"),
    Metric("leases_expired_total", "COUNTER", "Prompts that nobody fetched in time"),
)


@dataclass(slots=True)
class Moved:
    """Rows that this worker has fetched. full_bytes_per_token: of an uncompressed cache."""

    full_bytes_per_token: float
    rows_moved_total: int = 0
    rows_failed_total: int = 0
    row_bytes_total: int = 0
    row_full_cache_bytes_total: float = 0
    row_seconds_total: float = 0

    @classmethod
    def by(cls, manifest: Manifest) -> "Moved":
        """Counts of a build's worker."""
        tokens = manifest.batch * manifest.geometry.L_max
        return cls(cache_bytes(manifest).full / tokens)

    def add(self, nbytes: int, prompt_length: int, seconds: float) -> None:
        """Count one fetched row."""
        self.rows_moved_total += 1
        self.row_bytes_total += nbytes
        self.row_full_cache_bytes_total += self.full_bytes_per_token * prompt_length
        self.row_seconds_total += seconds
