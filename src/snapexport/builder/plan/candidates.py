"""Which choices are looked at, and how many slots each has room for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from snapexport.builder import BuildOptions
from snapexport.builder.options import CACHE_FIELDS
from snapexport.builder.plan.footprint import Footprint, footprint, step_bytes
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.options import PlanOptions
from snapexport.contract.errors import UserError
from snapexport.contract.geometry import CacheGeometry

COMPRESSIONS = (2, 4, 8, 16, 32)
CHUNKS = (128, 256, 512, 1024, 2048, 4096)
MOST_SLOTS = 256
"""No more are looked for: a decode step is bound by its caches, and not by weights, long before."""

Choice = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A cache and a chunk for any number of slots. choice: the flags that were not given."""

    request: PlanOptions
    model: PlannedModel
    choice: Choice
    geometry: CacheGeometry
    chunk: int

    @cached_property
    def slots(self) -> int:
        """The most that fit, 0 where not even one does."""
        most = max(MOST_SLOTS, self.request["batch"] or 0)
        return _most(most, lambda batch: self.at(batch).prefill_peak <= self.request.memory)

    def options(self, batch: int) -> BuildOptions:
        """What to build for so many slots."""
        return self.request.build_options(**self.choice | {"batch": batch})

    def at(self, batch: int) -> Footprint:
        """What so many slots take."""
        return footprint(self.model, self.options(batch), self.geometry, self.chunk)

    def step_bytes(self, batch: int) -> int:
        """What a decode step of so many slots reads."""
        return step_bytes(self.model, self.options(batch), self.geometry)

    @property
    def single_shot(self) -> bool:
        return self.geometry.is_single_shot(self.chunk)

    @property
    def compression(self) -> float:
        """Slots of the full cache to those of this one."""
        full = self.geometry.L_max * self.geometry.num_layers
        return full / sum(layer.cache_slots for layer in self.geometry.layers)


def candidates(request: PlanOptions, model: PlannedModel) -> list[Candidate]:
    """Every cache with every chunk that the given flags leave open; the least compression first.

    Raises the UserError of `build` where the flags contradict each other or the model.
    """
    found: dict[tuple[CacheGeometry, int], Candidate] = {}
    for cache, chunk in product(_caches(request), _chunks(request)):
        try:
            one = _candidate(request, model, cache | chunk)
        except UserError:
            continue  # a budget or a chunk that is too small or too large here
        found.setdefault((one.geometry, one.chunk), one)
    # Nothing chosen fits the given flags: then they are at fault, and say so themselves.
    return list(found.values()) or [_candidate(request, model, {})]


def _candidate(request: PlanOptions, model: PlannedModel, choice: Choice) -> Candidate:
    options = request.build_options(**choice | {"batch": 1})
    geometry = options.geometry(model.facts)
    chunk = options.chunk(geometry)
    return Candidate(request, model, choice | {"prefill_chunk": chunk}, geometry, chunk)


def _caches(request: PlanOptions) -> Iterator[Choice]:
    """The full one where nothing speaks of the cache, smaller and smaller ones, `build`'s own."""
    fields = ("policy", *CACHE_FIELDS)
    if all(request[field] is None for field in fields):
        yield {"policy": "full"}
    if request["policy"] != "full" and request["kv_budget"] is None:
        yield from ({"kv_budget": request["L_max"] // ratio} for ratio in COMPRESSIONS)
    yield {}


def _chunks(request: PlanOptions) -> Iterator[Choice]:
    if request["prefill_chunk"] is None:
        yield from ({"prefill_chunk": chunk} for chunk in (*CHUNKS, request["L_max"]))
    yield {}


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to the limit that fits; with one, all below it do."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
