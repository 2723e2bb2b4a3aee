"""From a request to a plan. Raises UserError where nothing fits, with the least that would."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.builder.plan.candidates import Candidate, candidates
from snapexport.builder.plan.model import PlannedModel, read_model
from snapexport.builder.plan.options import PlanOptions
from snapexport.builder.plan.recommendation import Recommendation, recommend
from snapexport.builder.plan.words import chosen_flags
from snapexport.builder.presets import flag_of
from snapexport.contract.bytes import as_flag, spelled
from snapexport.contract.errors import UserError


@dataclass(frozen=True)
class Plan:
    """All that was looked at, and what is recommended of it."""

    request: PlanOptions
    model: PlannedModel
    candidates: list[Candidate]
    recommendation: Recommendation


def make_plan(request: PlanOptions) -> Plan:
    """Read the checkpoint's headers and decide. Raises UserError."""
    model = read_model(request["model"])
    _with_dtype(request, model).build_options()  # flags that contradict each other
    return plan_for(request, model)


def plan_for(request: PlanOptions, model: PlannedModel) -> Plan:
    """The same for a model that is known. Raises UserError."""
    request = _with_dtype(request, model)
    found = candidates(request, model)
    recommendation = recommend(request, found)
    if recommendation is None:
        raise _nothing_fits(request, model, found)
    return Plan(request, model, found, recommendation)


def _with_dtype(request: PlanOptions, model: PlannedModel) -> PlanOptions:
    """TensorRT: the 16-bit type of the checkpoint, so that it is linked. The CPU: `build`'s own."""
    if request["target"] == "tensorrt" and request["dtype"] is None:
        dtype = "fp16" if model.stored == "fp16" else "bf16"
        return dataclasses.replace(request, given={**request.given, "dtype": dtype})
    options = request.build_options(batch=1)
    if options.target != "tensorrt" and options.dtype == "bf16":
        raise UserError(
            f"--target {options.target} runs on the CPU, which cannot calculate in bf16",
            "use --dtype fp32, or --target tensorrt",
        )
    return request


def _nothing_fits(
    request: PlanOptions, model: PlannedModel, found: Sequence[Candidate]
) -> UserError:
    batch = request["batch"] or 1
    least = min(found, key=lambda one: one.at(batch).prefill_peak)
    taken = least.at(batch)
    ways = [f"--memory {as_flag(taken.prefill_peak)} with {chosen_flags(least.options(batch))}"]
    ways += _smaller_weights(request, model, taken.prefill_peak)
    return UserError(
        f"nothing fits into {spelled(request.memory)}: the least is {spelled(taken.prefill_peak)}, "
        f"{spelled(taken.weights)} of it weights",
        "what would: " + "; ".join(ways),
    )


def _smaller_weights(request: PlanOptions, model: PlannedModel, needed: int) -> list[str]:
    """The same with other weights, where that helps."""
    batch = request["batch"] or 1
    ways: list[str] = []
    for field, value in (("weights", "int4"), ("dtype", "fp32"), ("dtype", "bf16")):
        try:
            other = dataclasses.replace(request, given={**request.given, field: value})
            found = candidates(_with_dtype(other, model), model)
        except UserError:
            continue  # not to be had on this target
        least = min(one.at(batch).prefill_peak for one in found)
        if least < needed:
            ways.append(f"--memory {as_flag(least)} if {flag_of(field)} {value} is added")
    return ways
