"""Converts a plan to plain data, for programs and for the command line."""

from typing import Any

from snapexport.builder.plan.alternatives import Alternative
from snapexport.builder.plan.footprint import Footprint
from snapexport.builder.plan.plan import Plan
from snapexport.builder.plan.recommendation import reasons
from snapexport.builder.plan.request import command
from snapexport.files.dtypes import BY_FLAG


def plan_report(plan: Plan) -> dict[str, Any]:
    """All alternatives and the recommendation; sizes in bytes."""
    request, chosen = plan.request, plan.recommendation
    options = chosen.options
    facts = plan.model.facts
    return {
        "model": facts.model_dump(),
        "memory_bytes": request.memory,
        "L_max": options.L_max,
        "target": options.target,
        "dtype": options.dtype,
        "cache_dtype": options.stored_cache_dtype,
        "weights": options.weights,
        "full_cache_bytes_per_token": (facts.position_values * BY_FLAG[options.dtype].bytes),
        "alternatives": [alternative_report(plan, option) for option in plan.alternatives],
        "recommendation": {
            **_choice(chosen.alternative),
            **_sizes(chosen.alternative, chosen.batch),
            "reasons": reasons(request, chosen),
            "command": command(options),
        },
    }


def alternative_report(plan: Plan, option: Alternative) -> dict[str, Any]:
    """A row of the report. Its batch: the given one, else the largest that fits, else 1."""
    batch = plan.request["batch"] or max(1, option.most_slots)
    return {**_choice(option), "most_slots": option.most_slots, **_sizes(option, batch)}


def _choice(option: Alternative) -> dict[str, Any]:
    return {
        "policy": option.geometry.policy,
        "compression": option.compression,
        "slots_per_layer": [layer.cache_slots for layer in option.geometry.layers],
        "prefill_chunk": option.chunk,
        "layout": "single-shot" if option.single_shot else "chunked",
    }


def _sizes(option: Alternative, batch: int) -> dict[str, Any]:
    taken = option.at(batch)
    return {
        "batch": batch,
        "fits": taken.prefill_peak <= option.request.memory,
        "left_bytes": option.request.memory - taken.prefill_peak,
        "decode_step_bytes": option.step_bytes(batch),
        "bytes": parts(taken),
    }


def parts(taken: Footprint) -> dict[str, int]:
    """The parts of a footprint, and its two sums."""
    return {name: getattr(taken, name) for name in _PARTS}


_PARTS = (
    *("process", "weights", "decode_cache", "prefill_cache"),
    *("prefill_work", "compress_work", "decode_work", "decode_resident", "prefill_peak"),
)
