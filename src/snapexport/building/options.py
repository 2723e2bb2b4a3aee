"""What a build is asked for, and the cache geometry that follows from it.

The command line's flags and defaults are made from this class.
"""

from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.contract.geometry import CacheGeometry, Policy
from snapexport.contract.manifest import DType, ModelFacts, Target

DEFAULT_COMPRESSION = 4
"""Without --kv-budget, --L-recent or --K the cache gets L_max / 4 slots: SnapStream's own ratio."""

DEFAULT_L_OBS = 8
"""KV-Compress found 8 best; SnapKV uses 32."""

DEFAULT_CHUNK = 512
"""Long enough that a chunk is bound by arithmetic, short enough not to stall running streams."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Every choice of `snapexport build`. None: chosen from the others. Tokens unless said."""

    model: str
    out: Path
    L_max: int
    L_sink: int = 4
    L_recent: int | None = None
    K: int | None = None
    L_obs: int | None = None
    pool_kernel: int = 7
    kv_budget: int | None = None
    policy: Policy = "snapstream"
    batch: int = 4
    prefill_chunk: int | None = None
    dtype: DType = "fp32"
    target: Target = "onnxruntime"
    baseline: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"--batch {self.batch} is below 1", "use --batch 1 or more")
        if self.L_max < 1:
            raise UserError(f"--L-max {self.L_max} is below 1", "use --L-max 1 or more")
        if self.policy == "full" and self.baseline:
            raise UserError(
                "--baseline adds the full cache's graphs, which --policy full builds already",
                "leave one of them out",
            )
        if self.policy != "full":
            self._require_consistent()

    def _require_consistent(self) -> None:
        if None not in (self.kv_budget, self.L_recent) and self.policy == "streaming":
            raise UserError("--kv-budget and --L-recent both set the ring", "give one of them")
        if None not in (self.kv_budget, self.L_recent, self.K):
            raise UserError(
                "--kv-budget, --L-recent and --K are given together",
                "give --kv-budget with at most one of the others: the rest is what remains",
            )
        if self.kv_budget is not None and self.kv_budget > self.L_max:
            raise UserError(
                f"--kv-budget {self.kv_budget} is more than --L-max {self.L_max}: "
                "nothing would be compressed",
                f"use a budget below {self.L_max}, or --policy full",
            )
        if self.policy == "streaming" and self.K:
            raise UserError(f"--policy streaming keeps no top-k, but --K is {self.K}", "drop --K")

    def geometry(self, model: ModelFacts) -> CacheGeometry:
        """The cache of `model` under these options. Raises UserError."""
        _require_position_limit(self.L_max, model.max_position_embeddings)
        if self.policy == "full":
            return CacheGeometry.full(self.L_max, model.num_hidden_layers)
        L_recent, K = self._ring_and_topk()
        return CacheGeometry(
            self.policy,
            self.L_max,
            model.num_hidden_layers,
            L_sink=self.L_sink,
            L_recent=L_recent,
            K=K,
            L_obs=self.L_obs if self.L_obs is not None else max(1, min(DEFAULT_L_OBS, L_recent)),
            pool_kernel=self.pool_kernel,
        )

    def _ring_and_topk(self) -> tuple[int, int]:
        """L_recent and K: as given, or sharing what the sinks leave of the budget."""
        K = 0 if self.policy == "streaming" else self.K
        if self.kv_budget is None and self.L_recent is not None and K is not None:
            return self.L_recent, K
        default = max(self.L_max // DEFAULT_COMPRESSION, self.L_sink + 2)
        budget = default if self.kv_budget is None else self.kv_budget
        free = budget - self.L_sink
        if self.L_recent is not None:
            recent, topk = self.L_recent, free - self.L_recent
        else:
            topk = free // 2 if K is None else K
            recent = free - topk
        if recent < 1 or topk < 0:
            by_default = " (the default, a quarter of L_max)" if self.kv_budget is None else ""
            raise UserError(
                f"--kv-budget {budget}{by_default} leaves {recent} slots for the ring and {topk} "
                f"for top-k beside {self.L_sink} sinks",
                "raise --kv-budget, or lower --L-sink, --L-recent or --K",
            )
        return recent, topk

    def chunk(self, geometry: CacheGeometry) -> int:
        """C, the tokens of a prefill step. L_max means the single-shot layout."""
        least = geometry.L_obs if geometry.compresses else 1
        if self.prefill_chunk is None:
            return max(least, min(DEFAULT_CHUNK, self.L_max // 2), 1)
        if not least <= self.prefill_chunk <= self.L_max:
            raise UserError(
                f"--prefill-chunk {self.prefill_chunk} is not between "
                f"{least} (--L-obs) and {self.L_max} (--L-max)",
                f"use a value in between, such as {max(least, min(DEFAULT_CHUNK, self.L_max))}",
            )
        return self.prefill_chunk


def _require_position_limit(L_max: int, limit: int) -> None:
    if L_max > limit:
        raise UserError(
            f"--L-max {L_max} is above the model's position limit {limit}",
            f"use --L-max {limit} or less: the model has not learned longer positions",
        )
