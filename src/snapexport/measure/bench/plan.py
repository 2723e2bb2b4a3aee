"""Plans `snapexport bench BUILD`: checks its options against the build, and estimates its time.

A chunk and a few decode steps are timed on this machine, as `snapexport eval` does too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.pieces import pieces_of
from snapexport.errors import UserError
from snapexport.measure.bench.systems import SystemSpec
from snapexport.measure.bench.turns import SHORT, Row, seconds_of
from snapexport.measure.options import BenchOptions
from snapexport.runtime.engine.executor import Executor


@dataclass(frozen=True)
class Plan:
    """The checked steps of a measurement, before anything is loaded.

    options: contexts ascending; batches descending, since idle batch slots lose their caches.
    """

    build: Build
    options: BenchOptions
    specs: Sequence[SystemSpec]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]

    @classmethod
    def of(cls, build: Build, options: BenchOptions) -> "Plan":
        """Plan the build, and its baseline if wanted. Raises UserError."""
        build.require_run(baseline=options.baseline, **options.running)
        sides = (False, True) if options.baseline else (False,)
        specs = [SystemSpec.of(build, baseline=side, **options.running) for side in sides]
        return cls.over(build, options, specs)

    @classmethod
    def over(cls, build: Build, options: BenchOptions, specs: Sequence[SystemSpec]) -> "Plan":
        """Check the options against every system. Raises UserError."""
        most = min(spec.batch for spec in specs)
        batches = tuple(sorted(options.batches or {1, most}, reverse=True))
        if batches[0] > most:
            raise UserError(
                f"--batches {batches[0]} is more than the {most} slots of the build",
                f"use --batches up to {most}, or build it again with --batch {batches[0]}",
            )
        room = options.decode_steps * len(batches)
        longest = min(min(spec.longest_prompt, spec.positions - room) for spec in specs)
        chosen = {max(1, longest // 8), max(1, longest // 2)}
        contexts = tuple(sorted(options.contexts or chosen))
        for spec in specs:
            _require_positions(contexts[-1], room, spec)
        options = replace(options, contexts=contexts, batches=batches)
        return cls(build, options, specs, contexts, batches)

    def about(self) -> Row:
        """Facts of the build for the top of the results."""
        manifest = self.build.manifest
        return {
            "build": str(self.build.directory),
            "model": manifest.model.architecture,
            "target": manifest.target,
            "dtype": manifest.dtype,
        }


def _require_positions(context: int, room: int, spec: SystemSpec) -> None:
    if context > spec.longest_prompt:
        raise UserError(
            f"--contexts {context} is longer than a prompt can be: {spec.longest_prompt} tokens",
            f"use --contexts up to {spec.longest_prompt}, or build with a larger --L-max",
        )
    if context + room > spec.positions:
        raise UserError(
            f"--contexts {context} leaves no room for {room} decoded tokens: the {spec.name} "
            f"cache ends at position {spec.positions}",
            f"use --contexts up to {max(1, spec.positions - room)}, or fewer --decode-steps",
        )


_STEPS = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds: by the clock, on this machine. nbytes: of weights and caches, in memory at once."""

    seconds: float
    nbytes: int


def chunk_seconds(executor: Executor, prompt_length: int) -> float:
    """Seconds of a prompt's middle chunk: they grow with the chunks before it.

    A prompt of one chunk, or of a single-shot build, is run whole.
    """
    work = pieces_of(prompt_length, executor.limits.prefill)
    own = [piece for piece in work if not piece.only_votes]
    prompt = [prompt_length % 97] * prompt_length
    return seconds_of(lambda: executor.take(0, prompt, own[(len(own) - 1) // 2]))


def step_seconds(executor: Executor, active: int) -> float:
    """Seconds of a decode step of the first `active` batch slots, whose contents are lost."""
    ones = np.ones(active, np.int64)

    def steps() -> None:
        for position in range(_STEPS):
            executor.decode(ones, ones + position, ones)

    return seconds_of(steps) / _STEPS


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


def _at_context(plan: Plan, executor: Executor, context: int, decode: float) -> float:
    """All visits of a context: the longest one also warms up, and is where memory is measured."""
    limits, rounds = executor.limits, plan.options.repeat
    chunks = sum(piece.cost for piece in pieces_of(context, limits.prefill)) / limits.prefill.chunk
    prefill = fill = chunk_seconds(executor, context) * chunks
    compression = 0.0
    if executor.prompt_cache:  # the further batch slots take the first one's prompt from there
        fill = seconds_of(lambda: executor.compress(0, context))
        compression = 2 * SHORT * fill  # the compress step by itself, and its vote
    visits = rounds + 2 * (context == plan.contexts[-1])
    visit = prefill + fill * (plan.batches[0] - 1) + decode
    return visits * visit + rounds * compression
