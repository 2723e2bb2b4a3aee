"""Why a recommendation is what it is, a line for each choice."""

from collections.abc import Iterator

from snapexport.builder.plan.candidates import MOST_SLOTS
from snapexport.builder.plan.options import PlanOptions
from snapexport.builder.plan.recommendation import Recommendation
from snapexport.contract.bytes import spelled


def reasons(request: PlanOptions, chosen: Recommendation) -> list[str]:
    """In the order in which the choices were made."""
    return [
        *_cache(request, chosen),
        *_chunk(request, chosen),
        _batch(request, chosen),
        *_weights(chosen),
    ]


def _cache(request: PlanOptions, chosen: Recommendation) -> Iterator[str]:
    one = chosen.candidate
    ratio = f"{one.compression:.3g} : 1"
    if not one.geometry.compresses:
        if request["policy"] is None:
            yield f"cache: the full one fits with {chosen.batch} slots, so that nothing is lost"
    elif "kv_budget" not in one.choice:
        yield f"cache: {ratio}, as given"
    elif one.geometry == chosen.first.geometry and request["batch"] is None:
        yield f"cache: {ratio} is SnapStream's own ratio, and `build`'s default"
    else:
        yield f"cache: {ratio}, the least compression that holds {chosen.batch} slots"


def _chunk(request: PlanOptions, chosen: Recommendation) -> Iterator[str]:
    one = chosen.candidate
    if request["prefill_chunk"] is not None:
        return
    if one.single_shot:
        yield (
            "prefill: in a single shot, since no chunk leaves room for the full-length cache of "
            "the prompt; every prompt costs as much as one of L_max"
        )
    elif one.chunk == chosen.first.chunk:
        yield f"prefill: {one.chunk} tokens a step, as `build` has it by default"
    else:
        yield f"prefill: {one.chunk} tokens a step, since {chosen.first.chunk} need more memory"


def _batch(request: PlanOptions, chosen: Recommendation) -> str:
    left = spelled(request.memory - chosen.candidate.at(chosen.batch).prefill_peak)
    most = chosen.candidate.slots
    if chosen.batch < most:
        why = "as given" if request["batch"] else "`build`'s default"
        return f"batch: {chosen.batch}, {why}; {most} would fit, {left} are left"
    if chosen.batch == MOST_SLOTS:
        return f"batch: {chosen.batch}, the most that is looked at; {left} are left"
    return f"batch: {chosen.batch}, no more fit; {left} are left"


def _weights(chosen: Recommendation) -> Iterator[str]:
    if chosen.options.target == "tensorrt":
        copies = "prefill's plan and decode's hold a copy of the weights each"
        yield f"weights: {chosen.options.dtype}; {copies}"
    elif chosen.options.weights is None and chosen.options.dtype == "fp32":
        yield "weights: fp32, mapped once for all graphs; --weights int4 would be smaller"
