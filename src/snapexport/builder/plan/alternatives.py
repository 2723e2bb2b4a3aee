"""Enumerates the alternatives of a plan, and recommends one of them, with reasons.

With a given batch, the least compression that fits wins. Otherwise the cache has SnapStream's
ratio, and the batch fills the memory. If `build`'s default batch does not fit then, the order is: a
smaller chunk or a single shot, which lose nothing, then more compression.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from snapexport.builder import BuildOptions
from snapexport.builder.options import DEFAULT_COMPRESSION, cache_fields
from snapexport.builder.plan.footprint import Footprint, PlannedTensors, footprint
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.request import PlanRequest
from snapexport.builder.plan.weights import read_bytes
from snapexport.contract.geometry import CacheGeometry, require_capacities
from snapexport.contract.memory import spelled
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError, flag_of
from snapexport.methods import table

COMPRESSIONS = (2, 4, 8, 16, 32)
CHUNKS = (128, 256, 512, 1024, 2048, 4096)
MOST_SLOTS = 256
"""Largest batch considered: far above it a decode step is bound by its caches, not by weights."""
USUAL_BATCH = BuildOptions.batch

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
        return largest(most, lambda batch: self.peak(batch) <= self.request.memory)

    def options(self, batch: int) -> BuildOptions:
        """The options of the build for this batch."""
        return self.request.build_options(**self.choice | {"batch": batch})

    def at(self, batch: int) -> Footprint:
        """The memory of the build for this batch."""
        options = self.options(batch)
        return footprint(self.model, options, self.geometry, self.chunk, self._tensors)

    def peak(self, batch: int) -> int:
        """The most bytes of the process: its bound where it has one, or else the estimated peak."""
        bound = self.request.bound(self, batch)
        return int(bound.nbytes if bound else self.at(batch).prefill_peak)

    def step_bytes(self, batch: int) -> int:
        """Bytes that a decode step of all batch slots reads: the weights, and all caches.

        Where a further layer of the model drafts, the draft is part of the step.
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
    *_, chunk = options.chunks(geometry)
    require_capacities(options.prefill_capacities, chunk, options.L_max)
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


@dataclass(frozen=True)
class Recommendation:
    """An alternative and its batch. first: the preferred alternative, which may not have fit.

    fills: whether no batch was given, so that as many slots as fit are recommended.
    """

    alternative: Alternative
    batch: int
    first: Alternative
    fills: bool = True

    @property
    def options(self) -> BuildOptions:
        return self.alternative.options(self.batch)


def recommend(request: PlanRequest, found: Sequence[Alternative]) -> Recommendation | None:
    """The recommendation; None if nothing fits."""
    given: int | None = request["batch"]
    ranked = _rank(request, found)
    wanted = given or USUAL_BATCH
    for option in ranked:
        if option.most_slots >= wanted:
            batch = option.most_slots if given is None and option is ranked[0] else wanted
            return Recommendation(option, batch, ranked[0], fills=given is None)
    most = max(ranked, key=lambda option: option.most_slots)
    if given or not most.most_slots:
        return None
    return Recommendation(most, most.most_slots, ranked[0])


def _rank(request: PlanRequest, found: Sequence[Alternative]) -> list[Alternative]:
    """The alternatives, from the best one to the one that needs the least memory."""
    enough = [option for option in found if request["batch"] or _compresses_enough(request, option)]
    caches = list(dict.fromkeys(option.geometry for option in enough or found))
    ranked: list[Alternative] = []
    for geometry in caches:
        ranked += _by_chunk(request, [option for option in found if option.geometry == geometry])
    return ranked


def _compresses_enough(request: PlanRequest, option: Alternative) -> bool:
    budget = option.choice.get("kv_budget")
    if budget is None:
        return option.geometry.compresses
    return bool(budget <= request["L_max"] // DEFAULT_COMPRESSION)


def _by_chunk(request: PlanRequest, found: Sequence[Alternative]) -> list[Alternative]:
    """Order: `build`'s default chunk, smaller ones, single shot. Larger ones need more memory."""
    usual = request.build_options(batch=1).chunk(found[0].geometry)
    chunked = [option for option in found if option.chunk <= usual and not option.single_shot]
    return sorted(chunked, key=lambda option: -option.chunk) + [
        option for option in found if option.single_shot
    ]


def reasons(request: PlanRequest, chosen: Recommendation) -> list[str]:
    """A line for each choice, in the order of the choices."""
    return [
        *_cache(request, chosen),
        *_chunk(request, chosen),
        _batch(request, chosen),
        *_weights(chosen),
        *_advice(request, chosen),
    ]


def _advice(request: PlanRequest, chosen: Recommendation) -> Iterator[str]:
    """Further flags, where they go with the others."""
    option, facts = chosen.alternative, chosen.alternative.model.facts
    for flags, why in table.advice(option.geometry, facts):
        try:
            request.build_options(**option.choice, **flags).graph.require_model(facts)
        except UserError:
            continue
        yield f"{why}: {' '.join(map(flag_of, flags))}"


def _slots(batch: int) -> str:
    return "1 batch slot" if batch == 1 else f"{batch} batch slots"


def _cache(request: PlanRequest, chosen: Recommendation) -> Iterator[str]:
    option = chosen.alternative
    ratio = f"{option.compression:.3g} : 1"
    if not option.geometry.compresses:
        if request["policy"] is None:
            yield f"cache: the full cache fits with {_slots(chosen.batch)}: nothing is lost"
    elif "kv_budget" not in option.choice:
        given = any(request[name] is not None for name in ("kv_budget", "L_recent", "K"))
        why = "as given" if given else "the only one for this model and --L-max"
        yield f"cache: {ratio}, {why}"
    elif option.geometry == chosen.first.geometry and chosen.fills:
        yield f"cache: {ratio} is SnapStream's ratio, and `build`'s default"
    else:
        yield f"cache: {ratio}, the least compression with which {_slots(chosen.batch)} can be had"


def _chunk(request: PlanRequest, chosen: Recommendation) -> Iterator[str]:
    option = chosen.alternative
    if request["prefill_chunk"] is not None:
        return
    if option.single_shot and chosen.first.single_shot:
        yield f"prefill: in a single shot of {option.chunk} tokens: no chunk is shorter"
    elif option.single_shot:
        yield (
            "prefill: in a single shot, since with chunks the prompt's full-length cache does not "
            "fit; every prompt costs as much as one of L_max"
        )
    elif option.chunk == chosen.first.chunk:
        yield f"prefill: {option.chunk} tokens a step, `build`'s default"
    else:
        yield f"prefill: {option.chunk} tokens a step, since {chosen.first.chunk} need more memory"


def _batch(request: PlanRequest, chosen: Recommendation) -> str:
    left = spelled(request.memory - chosen.alternative.peak(chosen.batch))
    most = chosen.alternative.most_slots
    if chosen.batch < most:
        why = (
            "as given"
            if request["batch"]
            else "one user"
            if chosen.batch == 1
            else "`build`'s default"
        )
        return f"batch: {chosen.batch}, {why}; {most} would fit, {left} left"
    if chosen.batch == MOST_SLOTS:
        return f"batch: {chosen.batch}, the largest considered; {left} left"
    return f"batch: {chosen.batch}, no more fit; {left} left"


def _weights(chosen: Recommendation) -> Iterator[str]:
    stored = chosen.options.weights or chosen.options.dtype
    if chosen.options.graph.share_weights:
        yield f"weights: {stored}; one copy, which all graphs take as inputs"
    elif capabilities(chosen.options.target).weights_per_graph:
        copies = "the engines of prefill and decode hold a copy of the weights each"
        yield f"weights: {stored}; {copies}"
    elif chosen.options.holds_integers:
        yield (
            f"weights: {stored}; each graph holds a copy that it rearranged, until "
            "`snapexport engine` packs one for all"
        )
    elif chosen.options.dtype == "fp32":
        yield "weights: fp32, mapped once for all graphs; --weights int4 is smaller"
