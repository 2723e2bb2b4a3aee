"""Estimates the time and the memory of `snapexport bench BUILD` before it starts.

Each system's chunk, decode step and compress step are timed once; the rest is counted.
"""

from snapexport.contract.pieces import pieces_of
from snapexport.measure.bench.speed import Plan
from snapexport.measure.bench.systems import SystemSpec
from snapexport.measure.bench.turns import SHORT
from snapexport.measure.pace import Estimate, chunk_seconds, seconds, step_seconds
from snapexport.runtime.engine.batch_executor import BatchExecutor


def estimate(plan: Plan) -> Estimate:
    """Load one system after the other, and time them. Raises UserError."""
    weights = max(spec.costs.weights.nbytes for spec in plan.specs)
    nbytes = weights + sum(spec.cache_bytes for spec in plan.specs)
    return Estimate(sum(_of_system(plan, spec) for spec in plan.specs), nbytes)


def _of_system(plan: Plan, spec: SystemSpec) -> float:
    executor = spec.load().executor
    try:
        chunk_seconds(executor, 1)  # the first run reads the weights from the disk
        steps = sum(step_seconds(executor, batch) for batch in plan.batches)
        return sum(
            _at_context(plan, executor, context, steps * plan.options.decode_steps)
            for context in plan.contexts
        )
    finally:
        executor.close()


def _at_context(plan: Plan, executor: BatchExecutor, context: int, decode: float) -> float:
    """All visits of a context: the longest one also warms up, and is where memory is measured."""
    limits, rounds = executor.limits, plan.options.repeat
    chunks = sum(piece.cost for piece in pieces_of(context, limits.prefill)) / limits.prefill.chunk
    prefill = fill = chunk_seconds(executor, context) * chunks
    compression = 0.0
    if executor.prompt_cache:  # the further batch slots take the first one's prompt from there
        fill = seconds(lambda: executor.compress(0, context))
        compression = 2 * SHORT * fill  # the compress step by itself, and its vote
    visits = rounds + 2 * (context == plan.contexts[-1])
    visit = prefill + fill * (plan.batches[0] - 1) + decode
    return visits * visit + rounds * compression
