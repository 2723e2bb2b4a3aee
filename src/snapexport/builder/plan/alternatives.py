"""Enumerates the alternatives of a plan, and how many batch slots fit with each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from snapexport.builder import BuildOptions
from snapexport.builder.options import cache_fields
from snapexport.builder.plan.footprint import Footprint, footprint
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.request import PlanRequest
from snapexport.builder.plan.tensors import PlannedTensors
from snapexport.builder.plan.weights import read_bytes
from snapexport.builder.prefill_sizes import capacities
from snapexport.contract.geometry import CacheGeometry
from snapexport.errors import UserError
from snapexport.methods.short_chunks.spec import short_chunks

COMPRESSIONS = (2, 4, 8, 16, 32)
CHUNKS = (128, 256, 512, 1024, 2048, 4096)
MOST_SLOTS = 256
"""Largest batch considered: far above it a decode step is bound by its caches, not by weights."""

Choice = dict[str, Any]


@dataclass(frozen=True)
class Alternative:
    """A cache and a chunk for any batch. choice: the flags that were not given."""

    request: PlanRequest
    model: PlannedModel
    choice: Choice
    geometry: CacheGeometry
    chunk: int

    @cached_property
    def most_slots(self) -> int:
        """The most batch slots that fit; 0 if none does."""
        most = max(MOST_SLOTS, self.request["batch"] or 0)
        return largest(most, lambda batch: self.at(batch).prefill_peak <= self.request.memory)

    def options(self, batch: int) -> BuildOptions:
        """The options of the build for this batch."""
        return self.request.build_options(**self.choice | {"batch": batch})

    def at(self, batch: int) -> Footprint:
        """The memory of the build for this batch."""
        options = self.options(batch)
        return footprint(self.model, options, self.geometry, self.chunk, self._tensors)

    def step_bytes(self, batch: int) -> int:
        """Bytes that a decode step of all batch slots reads: the weights, and all caches.

        With --mtp a draft is part of the step.
        """
        read = read_bytes(self.model, self.options(batch))
        return read + batch * self._tensors.request_cache

    @cached_property
    def _tensors(self) -> PlannedTensors:
        return PlannedTensors.of(self.model.facts, self.options(1), self.geometry, self.chunk)

    @property
    def single_shot(self) -> bool:
        return self.geometry.is_single_shot(self.chunk)

    @property
    def compression(self) -> float:
        """Compression: cache slots of the full cache / cache slots of this one."""
        kv_heads, geometry = self.model.facts.kv_heads, self.geometry
        return geometry.as_full().head_slots(kv_heads) / geometry.head_slots(kv_heads)


def alternatives(request: PlanRequest, model: PlannedModel) -> list[Alternative]:
    """Every cache with every chunk that the given flags leave open, least compression first.

    Raises the UserError of `build` where the flags contradict each other or the model.
    """
    found: dict[tuple[CacheGeometry, int], Alternative] = {}
    for cache, chunk in product(_caches(request), _chunks(request)):
        try:
            option = _alternative(request, model, cache | chunk)
        except UserError:
            continue  # a budget or a chunk that is too small or too large here
        found.setdefault((option.geometry, option.chunk), option)
    # No choice goes with the given flags, so `build`'s own error names the faulty flag.
    return list(found.values()) or [_alternative(request, model, {})]


def _alternative(request: PlanRequest, model: PlannedModel, choice: Choice) -> Alternative:
    options = request.build_options(**choice | {"batch": 1})
    geometry = options.geometry(model.facts)
    chunk = options.chunk(geometry)
    capacities(options, chunk)
    copies = options.copies_weights or options.holds_integers
    short_chunks(options.graph, geometry, chunk, copies_weights=copies)
    return Alternative(request, model, choice | {"prefill_chunk": chunk}, geometry, chunk)


def _caches(request: PlanRequest) -> Iterator[Choice]:
    """The full cache unless a flag sets the cache, then smaller ones, with `build`'s default."""
    fields = ("policy", *cache_fields())
    if all(request[field] is None for field in fields):
        yield {"policy": "full"}
    if request["policy"] != "full" and request["kv_budget"] is None:
        yield from ({"kv_budget": request["L_max"] // ratio} for ratio in COMPRESSIONS)
    yield {}


def _chunks(request: PlanRequest) -> Iterator[Choice]:
    if request["prefill_chunk"] is None:
        yield from ({"prefill_chunk": chunk} for chunk in (*CHUNKS, request["L_max"]))
    yield {}


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to the limit that fits. If a number fits, all smaller ones do."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
