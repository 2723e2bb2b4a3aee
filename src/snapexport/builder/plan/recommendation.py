"""One choice out of the candidates, and why.

The number of slots is given, or it is as many as fit. Where it is given, the least compression that
holds it wins. Where it is not, SnapStream's own ratio gets all the memory; if that has no room for
`build`'s default number of slots, other ways are taken until they have it: first those that lose
nothing (a smaller chunk, a single shot), then more compression.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.builder import BuildOptions
from snapexport.builder.options import DEFAULT_COMPRESSION
from snapexport.builder.plan.candidates import Candidate
from snapexport.builder.plan.options import PlanOptions

USUAL_SLOTS = BuildOptions.batch


@dataclass(frozen=True)
class Recommendation:
    """A candidate and its number of slots. first: what was preferred to it, or itself."""

    candidate: Candidate
    batch: int
    first: Candidate

    @property
    def options(self) -> BuildOptions:
        return self.candidate.options(self.batch)


def recommend(request: PlanOptions, found: Sequence[Candidate]) -> Recommendation | None:
    """None where nothing fits."""
    given: int | None = request["batch"]
    ranked = _ranked(request, found)
    wanted = given or USUAL_SLOTS
    for one in ranked:
        if one.slots >= wanted:
            batch = one.slots if given is None and one is ranked[0] else wanted
            return Recommendation(one, batch, ranked[0])
    most = max(ranked, key=lambda one: one.slots)
    if given or not most.slots:
        return None
    return Recommendation(most, most.slots, ranked[0])


def _ranked(request: PlanOptions, found: Sequence[Candidate]) -> list[Candidate]:
    """From the one that is best to have to the one that needs least."""
    enough = [one for one in found if request["batch"] or _compresses_enough(request, one)]
    caches = list(dict.fromkeys(one.geometry for one in enough or found))
    ranked: list[Candidate] = []
    for geometry in caches:
        ranked += _by_chunk(request, [one for one in found if one.geometry == geometry])
    return ranked


def _compresses_enough(request: PlanOptions, one: Candidate) -> bool:
    budget = one.choice.get("kv_budget")
    if budget is None:
        return one.geometry.compresses
    return bool(budget <= request["L_max"] // DEFAULT_COMPRESSION)


def _by_chunk(request: PlanOptions, found: Sequence[Candidate]) -> list[Candidate]:
    """`build`'s own chunk, smaller ones, the single shot. Larger chunks only take more."""
    usual = request.build_options(batch=1).chunk(found[0].geometry)
    chunked = [one for one in found if one.chunk <= usual and not one.single_shot]
    return sorted(chunked, key=lambda one: -one.chunk) + [one for one in found if one.single_shot]
