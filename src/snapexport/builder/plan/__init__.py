"""What a build would take in memory, before anyone builds it.

checkpoint's headers -> PlannedModel -> Footprint of one choice -> candidates -> one recommendation.
Nothing is traced, loaded or written. Says nothing of speed but the bytes that a step has to read.
"""

from snapexport.builder.plan.options import PlanOptions
from snapexport.builder.plan.plan import Plan, make_plan

__all__ = ["Plan", "PlanOptions", "make_plan"]
