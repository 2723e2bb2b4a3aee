"""Plans the memory of a build before it is made.

checkpoint's headers -> PlannedModel -> Footprint of one choice -> alternatives -> recommendation.
Traces, loads and writes nothing. Knows of speed only the bytes that a step reads.
"""

from snapexport.builder.plan.plan import Plan, make_plan
from snapexport.builder.plan.request import PlanRequest

__all__ = ["Plan", "PlanRequest", "make_plan"]
