"""Plans `snapexport bench BUILD`: its options, checked against the build, and an estimate.

The flags and defaults of the command line are made from `BenchOptions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from snapexport.contract.build_directory import Build
from snapexport.contract.pieces import pieces_of
from snapexport.errors import UserError
from snapexport.measure.bench.probes import BenchBackend
from snapexport.measure.bench.systems import SystemSpec
from snapexport.measure.bench.turns import SHORT, Row
from snapexport.measure.options import require
from snapexport.measure.pace import Estimate, chunk_seconds, seconds_of, step_seconds
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import Precision


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Every choice of `snapexport bench`. None: chosen from the build.

    contexts: tokens of the prompts. batches: active batch slots. decode_steps: timed steps in a
    row, in each of `repeat` rounds. backend, precision, threads, prepack: as those of
    `open_executor`.
    """

    contexts: tuple[int, ...] | None = None
    batches: tuple[int, ...] | None = None
    decode_steps: int = 16
    repeat: int = 5
    baseline: bool = False
    backend: BenchBackend = "onnxruntime"
    precision: Precision | None = None
    threads: int | None = None
    prepack: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require(self, contexts=1, batches=1, decode_steps=1, repeat=1, seed=0, threads=1)

    @property
    def running(self) -> dict[str, Any]:
        """The backend and its settings: arguments of `open_executor`."""
        names = "backend", "precision", "threads", "prepack"
        return {name: getattr(self, name) for name in names}


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
