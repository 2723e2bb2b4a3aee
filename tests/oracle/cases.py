"""The builds that the parity tests share, each made once, and their comparison with the oracle."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snapexport.builder.options import cache_fields
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry, Policy
from snapexport.contract.policies import VOTE_FIELDS, topk_per_layer
from snapexport.contract.records import GeometryRecord
from snapexport.methods.head_budgets.groups import HeadBudget
from tests.builds import build

from . import checkpoints, masked
from .masked import OracleRun
from .raw import RawBuild

STEPS = 64
LOGITS = 1e-3
"""Largest difference of fp32 logits that is still the same answer."""
CACHED = 2e-4
"""The same of cached keys and values."""

_CUT: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 264}
"""Sizes of which 4 ranks can have equal parts."""

_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-bf16": ("llama", {"dtype": torch.bfloat16, "seed": 5}),
    "qwen3-sharded": ("qwen3", {"max_shard_size": "100KB", "seed": 6}),
    **{f"llama-{width}": ("llama", {"head_dim": width, "seed": width}) for width in (12, 20, 36)},
    "llama-blind": ("llama", {"blind": True}),
    "llama-mqa": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "seed": 7}),
    "deepseek-v3-mtp": ("deepseek-v3", {"mtp": True, "seed": 9}),
    "deepseek-v3-mtp-right": ("deepseek-v3", {"mtp": True, "seed": 9, "mostly_embedding": 0.15}),
    "qwen3-mha": ("qwen3", {"num_key_value_heads": 4, "seed": 8}),
    "llama-cut": ("llama", _CUT | {"attention_bias": True}),
    "llama-tied-cut": ("llama-tied", _CUT),
    "qwen3-cut": ("qwen3", _CUT),
    "gemma3-cut": ("gemma3", _CUT),
    "qwen3-moe-cut": ("qwen3-moe", _CUT),
    "deepseek-v2-cut": ("deepseek-v2", _CUT | {"num_key_value_heads": 8}),
    "deepseek-v3-cut": ("deepseek-v3", _CUT | {"num_key_value_heads": 8}),
}


_SLIDING_TYPES = ("mistral", "starcoder2")
"""Model types whose window is every layer's, without a list of the layers' types."""
_OF_GEOMETRY = ("L_obs", "pool_kernel", *VOTE_FIELDS)


@dataclass(frozen=True)
class Case:
    """One build: a checkpoint's name, and the options of `snapexport build`."""

    checkpoint: str = "llama"
    policy: Policy = "snapstream"
    L_max: int = 96
    L_sink: int = 4
    L_recent: int = 16
    K: int = 12
    L_obs: int = 8
    pool_kernel: int = 5
    vote: str = "sum"
    pool: str = "avg"
    softmax: str = "candidates"
    group: str = "mean"
    budget: str = "uniform"
    head_budget: tuple[tuple[int, ...], ...] = ()
    head_groups: int | None = None
    vote_queries: str = "prompt"
    prefill_chunk: int = 32
    short_chunks: tuple[int, ...] = ()
    batch: int = 3
    decode_batches: tuple[int, ...] = ()
    baseline: bool = False
    cache_dtype: str | None = None
    prompt_cache_dtype: str | None = None
    decode_attention: str | None = None
    top_tokens: int = 0
    share_weights: bool | None = None
    extend: bool = False
    prefill_budget: int = 0
    tokens_per_step: int = 1
    mtp: bool = False
    weights: str | None = None
    tensor_parallel: int = 1
    data_parallel_attention: bool = False
    target: str = "onnxruntime"

    @cached_property
    def windows(self) -> list[int]:
        """Each layer's window; 0: none."""
        return _windows(masked.load(checkpoint(self.checkpoint), masked.MASKED).config)

    @cached_property
    def geometry(self) -> CacheGeometry:
        """The case's geometry, computed here independently of the builder."""
        config = masked.load(checkpoint(self.checkpoint), masked.MASKED).config
        sources = _sources(config)
        shared = sources if sources != tuple(range(len(sources))) else ()
        if self.policy == "full":
            return CacheGeometry.full(self.L_max, len(sources), self.tokens_per_step, shared)
        every = zip(_windows(config), masked.chunks(config), strict=True)
        rings = [ring for layer, ring in enumerate(every) if sources[layer] == layer]
        exact = [window or min(chunk, self.L_max) for window, chunk in rings]
        sizes = [sorted(set(row)) for row in self.head_budget if row] or self._voted(exact)
        caches = [
            (0, ring, K, chunk) if ring else (self.L_sink, self.L_recent, K, 0)
            for ring, (_, chunk), of_layer in zip(exact, rings, sizes, strict=True)
            for K in of_layer
        ]
        L_sink, L_recent, K, chunk = zip(*caches, strict=True)
        groups = tuple(
            tuple(tuple(head for head, own in enumerate(row) if own == K) for K in sorted(set(row)))
            for row in self.head_budget
        )
        options = {name: getattr(self, name) for name in _OF_GEOMETRY}
        options["step_tokens"] = self.tokens_per_step
        shape = {"L_sink": L_sink, "L_recent": L_recent, "K": K, "head_groups": groups}
        shape |= {"cache_of": shared, "chunk": chunk if any(chunk) else 0}
        return GeometryRecord(self.policy, self.L_max, len(caches), **shape, **options).geometry()

    def _voted(self, windows: list[int]) -> list[list[int]]:
        """K of each layer's only cache."""
        K = 0 if self.policy == "streaming" else self.K
        room = self.L_max - self.L_sink - self.L_recent
        voted = iter(topk_per_layer(self.budget, K, windows.count(0), room))
        return [[0 if window else next(voted)] for window in windows]

    def __str__(self) -> str:
        """The options that differ from the defaults."""
        plain = asdict(Case())
        changes = {k: v for k, v in asdict(self).items() if v != plain[k]}
        return ",".join(f"{k}={v}" for k, v in changes.items()) or "default"


def _windows(config: Any) -> list[int]:
    """Each layer's window by config.json; 0: none, or longer than the model's sequences."""
    window = getattr(config, "sliding_window", None) or 0
    window = 0 if window >= config.max_position_embeddings else window
    types = getattr(config, "layer_types", None)
    if types is None:
        return [window if config.model_type in _SLIDING_TYPES else 0] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else 0 for kind in types]


def _sources(config: Any) -> tuple[int, ...]:
    """The layer whose cache each layer reads: the last layers share, by their types (Gemma)."""
    layers, types = config.num_hidden_layers, getattr(config, "layer_types", None)
    own = layers - (getattr(config, "num_kv_shared_layers", 0) or 0)
    last = {kind: layer for layer, kind in enumerate(types or []) if layer < own}
    return tuple(layer if layer < own else last[types[layer]] for layer in range(layers))


def build_checkpoint(model_dir: Path, out: Path, case: Case) -> None:
    """The only place that calls `build` for a case."""
    options = asdict(case)
    del options["checkpoint"]
    unused = {"streaming": ("K", *VOTE_FIELDS), "full": cache_fields()}.get(case.policy, ())
    if all(case.windows):
        unused = cache_fields()
    if case.vote_queries == "repeat":
        unused = ("L_obs", "vote", "softmax", "group")
    options.update(dict.fromkeys(unused))
    if case.head_budget:
        rows = tuple(tuple(map(float, row)) if any(row) else () for row in case.head_budget)
        options["head_budget"] = out.with_suffix(".heads.json")
        text = HeadBudget(max(map(len, rows)), rows).text({})
        options["head_budget"].write_text(text)
    else:
        options["head_budget"] = None
    options["decode_batches"] = case.decode_batches or (case.batch,)  # fewer graphs: faster
    build(model_dir, out, compares=False, **options)


@cache
def _workspace() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="snapexport-parity-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@cache
def checkpoint(name: str) -> Path:
    """Directory of a named checkpoint, of an architecture or a variant."""
    architecture, options = _VARIANTS.get(name, (name, {}))
    return checkpoints.make(architecture, _workspace() / "checkpoints" / name, **options)


@cache
def built(case: Case, prefix: str = "") -> RawBuild:
    return RawBuild(_build_directory(case), prefix)


@cache
def _build_directory(case: Case) -> Path:
    out = _workspace() / f"build-{abs(hash(case)):x}"
    build_checkpoint(checkpoint(case.checkpoint), out, case)
    return out


def build_of(case: Case) -> Build:
    """The same as the package opens it."""
    return Build.open(_build_directory(case))


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random token ids."""
    generator = np.random.default_rng([length, seed])
    return tuple(generator.integers(3, checkpoints.VOCABULARY, length).tolist())


def oracle(case: Case, length: int, steps: int = STEPS) -> OracleRun:
    """The expected run of a build of `case` on a clear prompt of that length.

    Builds that differ in chunks, batch or target alone share it.
    """
    return _oracle(case.checkpoint, case.geometry, length, steps)


@cache
def _oracle(name: str, geometry: CacheGeometry, length: int, steps: int) -> OracleRun:
    model_dir = checkpoint(name)
    return _first_clear(lambda ids: masked.run(model_dir, ids, geometry, steps), length)


@cache
def plain(name: str, length: int, steps: int = STEPS) -> OracleRun:
    """transformers' own greedy decoding of a clear prompt by a named checkpoint."""
    return _first_clear(lambda ids: masked.run_plain(checkpoint(name), ids, steps), length)


def _first_clear(answer: Callable[[tuple[int, ...]], OracleRun], length: int) -> OracleRun:
    runs = (answer(prompt(length, seed)) for seed in range(100))
    return next(run for run in runs if run.is_clear)


def in_groups(lengths: Sequence[int], size: int) -> list[Sequence[int]]:
    """The lengths in groups that share a decode batch."""
    return [lengths[i : i + size] for i in range(0, len(lengths), size)]
