"""Makes a plan for a request, or a UserError with the least memory that would do.

`plan_report` converts a plan to plain data, for programs and for the command line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import Any

from snapexport.builder import BuildOptions
from snapexport.builder.plan.alternatives import (
    Alternative,
    Recommendation,
    alternatives,
    reasons,
    recommend,
)
from snapexport.builder.plan.footprint import Footprint
from snapexport.builder.plan.model import PlannedModel, read_model
from snapexport.builder.plan.request import PlanRequest, chosen_flags, command
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.memory import as_flag, spelled
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError, flag_of
from snapexport.exporter.read.first_look import look
from snapexport.files.dtypes import BY_FLAG, DType


@dataclass(frozen=True)
class Plan:
    """All alternatives, the recommended one, and for_one: that for one request at a time.

    for_one: None where a batch is given.
    """

    request: PlanRequest
    model: PlannedModel
    alternatives: list[Alternative]
    recommendation: Recommendation
    for_one: Recommendation | None


def make_plan(request: PlanRequest) -> Plan:
    """Read the checkpoint's headers and decide. Raises UserError."""
    options = _with_dtype(request, "bf16").build_options()  # flags that contradict each other
    options.require_positions(look(request["model"], needs_weights=False))
    model = read_model(
        request["model"],
        request.graph,
        longrope_for=request["L_max"] if request["longrope"] else None,
    )
    options.graph.require_model(model.facts)
    return plan_for(request, model)


def plan_for(request: PlanRequest, model: PlannedModel) -> Plan:
    """Plan for a model whose headers are read. Raises UserError."""
    request = with_defaults(request, model)
    found = alternatives(request, model)
    recommendation = recommend(request, found)
    if recommendation is None:
        raise _nothing_fits(request, model, found)
    for_one = None if request["batch"] else recommend(request.with_given(batch=1), found)
    return Plan(request, model, found, recommendation, for_one)


def with_defaults(request: PlanRequest, model: PlannedModel) -> PlanRequest:
    """The request with its dtype. Raises UserError for weights that the model does not have."""
    if request["weights"] == "fp8" and model.fp8 is None:
        raise UserError(
            "--weights fp8 keeps fp8 weights as they are, and the checkpoint has none",
            "leave it out, or plan for a checkpoint that is published in fp8",
        )
    if request["weights"] == "keep" and "keep" not in model.forms:
        raise UserError(
            "--weights keep stores integers as the checkpoint has them, and it has none",
            "leave it out; int8 or int4 round floats to integers",
        )
    return _with_kept_integers(_with_dtype(request, model.stored), model)


def _with_kept_integers(request: PlanRequest, model: PlannedModel) -> PlanRequest:
    """The default of a checkpoint with integers, where target and flags let it keep them."""
    if request["weights"] is not None or "keep" not in model.forms:
        return request
    kept = request.with_given(weights="keep")
    try:
        target = kept.build_options(batch=1).target
    except UserError:
        return request
    return kept if capabilities(target).keeps(_integers(model)) else request


def _integers(model: PlannedModel) -> list[tuple[int, int]]:
    """(bits, elements) of what the checkpoint has as integers."""
    forms, experts = model.forms["keep"], model.experts
    sizes = [(form, prod(size)) for form, size in zip(forms.linear, model.linear, strict=True)]
    if experts:
        sizes.append((forms.experts, experts.layers * experts.count * experts.elements))
    return [(form.bits, size) for form, size in sizes if form]


def _with_dtype(request: PlanRequest, stored: DType) -> PlanRequest:
    """The default dtype on a GPU: the checkpoint's own 16 bits, so that no weight is converted."""
    target = request["target"] or BuildOptions.target
    on_gpu = capabilities(target).runs_on_gpu
    if on_gpu and request["dtype"] is None:
        return request.with_given(dtype="fp16" if stored == "fp16" else "bf16")
    if not on_gpu:  # the memory is that of the CPU
        require_compatible({"dtype": request.build_options(batch=1).dtype, "placed_on": "cpu"})
    return request


def _nothing_fits(
    request: PlanRequest, model: PlannedModel, found: Sequence[Alternative]
) -> UserError:
    batch = request["batch"] or 1
    needed, least = min(((one.peak(batch), one) for one in found), key=itemgetter(0))
    ways = [f"--memory {as_flag(needed)} with {chosen_flags(least.options(batch))}"]
    ways += _smaller_weights(request, model, needed)
    return UserError(
        f"nothing fits into {spelled(request.memory)}: the least is {spelled(needed)}, "
        f"{spelled(least.at(batch).weights)} of it weights",
        "what would: " + "; ".join(ways),
    )


def _smaller_weights(request: PlanRequest, model: PlannedModel, needed: int) -> list[str]:
    """Other weights or dtypes that need less memory."""
    batch = request["batch"] or 1
    ways: list[str] = []
    smaller = [("weights", "int4"), ("dtype", "fp32"), ("dtype", "bf16")]
    for field, value in [("weights", "fp8"), *smaller] if model.fp8 else smaller:
        try:
            other = request.with_given(**{field: value})
            found = alternatives(_with_dtype(other, model.stored), model)
        except UserError:
            continue  # not supported on this target
        least = min(option.peak(batch) for option in found)
        if least < needed:
            ways.append(f"--memory {as_flag(least)} if {flag_of(field)} {value} is added")
    return ways


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
        "recommendation": _recommend(request, chosen),
        "for_one_request": plan.for_one and _recommend(request, plan.for_one),
    }


def _recommend(request: PlanRequest, chosen: Recommendation) -> dict[str, Any]:
    return {
        **_choice(chosen.alternative),
        **_sizes(chosen.alternative, chosen.batch),
        "reasons": reasons(request, chosen),
        "command": command(chosen.options),
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
    peak, memory = option.peak(batch), option.request.memory
    return {
        "batch": batch,
        "fits": peak <= memory,
        "left_bytes": memory - peak,
        "peak_bytes": peak,
        "decode_step_bytes": option.step_bytes(batch),
        "bytes": parts(option.at(batch)),
    }


def parts(taken: Footprint) -> dict[str, int]:
    """The parts of a footprint, and its two sums."""
    return {name: getattr(taken, name) for name in _PARTS}


_PARTS = (
    *("process", "weights", "decode_cache", "prefill_cache"),
    *("prefill_work", "compress_work", "decode_work", "decode_resident", "prefill_peak"),
)
