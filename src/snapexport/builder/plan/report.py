"""A plan as plain data, for programs and for the tables of the command line."""

from typing import Any

from snapexport.builder.plan import caches
from snapexport.builder.plan.candidates import Candidate
from snapexport.builder.plan.footprint import Footprint
from snapexport.builder.plan.plan import Plan
from snapexport.builder.plan.reasons import reasons
from snapexport.builder.plan.words import command


def plan_report(plan: Plan) -> dict[str, Any]:
    """All candidates and the recommendation; sizes in bytes."""
    request, chosen = plan.request, plan.recommendation
    options = chosen.options
    facts = plan.model.facts
    return {
        "model": facts.model_dump(),
        "memory_bytes": request.memory,
        "L_max": options.L_max,
        "target": options.target,
        "dtype": options.dtype,
        "cache_dtype": options.held_dtype,
        "weights": options.weights,
        "full_cache_bytes_per_token": caches.token_bytes(facts, options.dtype),
        "candidates": [candidate_report(plan, one) for one in plan.candidates],
        "recommendation": {
            **_choice(chosen.candidate),
            **_sizes(chosen.candidate, chosen.batch),
            "reasons": reasons(request, chosen),
            "command": command(options),
        },
    }


def candidate_report(plan: Plan, one: Candidate) -> dict[str, Any]:
    """A row: the given number of slots, else as many as fit, else the one that does not fit."""
    batch = plan.request["batch"] or max(1, one.slots)
    return {**_choice(one), "most_slots": one.slots, **_sizes(one, batch)}


def _choice(one: Candidate) -> dict[str, Any]:
    return {
        "policy": one.geometry.policy,
        "compression": one.compression,
        "slots_per_layer": [layer.cache_slots for layer in one.geometry.layers],
        "prefill_chunk": one.chunk,
        "layout": "single-shot" if one.single_shot else "chunked",
    }


def _sizes(one: Candidate, batch: int) -> dict[str, Any]:
    taken = one.at(batch)
    return {
        "batch": batch,
        "fits": taken.prefill_peak <= one.request.memory,
        "left_bytes": one.request.memory - taken.prefill_peak,
        "decode_step_bytes": one.step_bytes(batch),
        "bytes": parts(taken),
    }


def parts(taken: Footprint) -> dict[str, int]:
    """What is counted, and the two sums."""
    return {
        "process": taken.process,
        "weights": taken.weights,
        "decode_cache": taken.decode_cache,
        "prefill_cache": taken.prefill_cache,
        "prefill_work": taken.prefill_work,
        "compress_work": taken.compress_work,
        "decode_work": taken.decode_work,
        "decode_resident": taken.decode_resident,
        "prefill_peak": taken.prefill_peak,
    }
