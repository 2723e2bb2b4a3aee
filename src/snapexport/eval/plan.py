"""What an evaluation does, decided and refused before anything is loaded."""

import hashlib
import json
from dataclasses import asdict, dataclass

from tokenizers import Tokenizer

import snapexport
from snapexport.builder.derive import is_soft_capped, require_chunk
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.eval.contestants import Contestant, Lineup, typical_layer
from snapexport.eval.options import EvalOptions
from snapexport.eval.questions import Questions
from snapexport.runtime.ort.backend import require_runnable
from snapexport.runtime.prompts import load_tokenizer


@dataclass(frozen=True)
class Plan:
    """Every question is asked of every contestant, in every mode.

    hit_samples: as asked for, or 0 where the model does not show what it looks at.
    """

    build: Build
    options: EvalOptions
    questions: Questions
    contestants: tuple[Contestant, ...]
    hit_samples: int

    @property
    def answers(self) -> int:
        """How many answers are asked for."""
        return len(self.questions.cells()) * len(self.contestants) * len(self.options.modes)

    def fingerprint(self) -> str:
        """The same for the same questions to the same caches of the same build."""
        questions, manifest = self.questions, self.build.manifest
        told = [
            snapexport.__version__,
            [file.model_dump() for file in manifest.weights],
            [entry.sha256 for entry in (*manifest.graphs.values(), *manifest.traces.values())],
            [questions.tasks, questions.lengths, questions.depths, questions.samples],
            [questions.seed, questions.aging, questions.answer_tokens, self.options.modes],
            [asdict(contestant) for contestant in self.contestants],
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def plan(build: Build, options: EvalOptions) -> Plan:
    """Check that the build can do what is asked. Raises UserError."""
    _require_usable(build)
    model, own = build.manifest.model, build.manifest.geometry
    lengths = tuple(sorted(options.lengths or _default_lengths(own.L_max)))
    budgets = tuple(sorted(options.budgets or (typical_layer(own, model).cache_slots,)))
    draft = Lineup(model, own.L_max, own).contestants(options.policies, budgets)
    _require_fitting(build, lengths, draft)
    ring = max(contestant.ring for contestant in draft)
    questions = Questions(
        _tokenizer(build),
        options.tasks,
        lengths,
        options.depths,
        options.samples,
        options.seed,
        aging=ring + 1,
        answer_tokens=ring + 1,
    )
    questions.require_fit()
    L_max = _positions(build, questions, options)
    contestants = Lineup(model, L_max, own).contestants(options.policies, budgets)
    hit_samples = 0 if is_soft_capped(build) else options.hit_samples
    return Plan(build, options, questions, tuple(contestants), hit_samples)


def _require_usable(build: Build) -> None:
    if not build.manifest.traces:
        raise UserError(
            f"{build.directory} has no baseline: other caches are made from its trace",
            "build it again with --baseline (and any policy but full)",
        )
    require_runnable(build, baseline=False)


def _tokenizer(build: Build) -> Tokenizer:
    tokenizer = load_tokenizer(build.directory)
    if tokenizer is None:
        raise UserError(
            f"{build.directory} has no tokenizer.json: no task can be spelled",
            "copy it from the checkpoint",
        )
    return tokenizer


def _default_lengths(L_max: int) -> tuple[int, ...]:
    """A quarter, a half and nearly all of what the build takes: the answer needs room too."""
    most = max(1, L_max - max(64, L_max // 16))
    return tuple({max(1, most // 4), max(1, most // 2), most})


def _require_fitting(build: Build, lengths: tuple[int, ...], contestants: list[Contestant]) -> None:
    L_max, longest = build.manifest.geometry.L_max, lengths[-1]
    if longest > L_max:
        raise UserError(
            f"a task of {longest} tokens is longer than the build's --L-max {L_max}",
            f"use --lengths up to {L_max}, or build again with a larger --L-max",
        )
    for contestant in contestants:
        if contestant.geometry.compresses:
            _require_compressing(contestant, longest)
            require_chunk(build.manifest.prefill_chunk, contestant.geometry)


def _require_compressing(contestant: Contestant, longest: int) -> None:
    if contestant.slots >= longest:
        raise UserError(
            f"a budget of {contestant.slots} slots holds whole prompts of {longest} tokens",
            "use smaller --budgets, or longer --lengths",
        )


def _positions(build: Build, questions: Questions, options: EvalOptions) -> int:
    """L_max of the caches: room for the longest request in the full one. Raises UserError."""
    manifest = build.manifest
    needed = questions.positions(options.modes)
    limit = manifest.model.max_position_embeddings
    if manifest.single_shot:  # its prefill takes just this many
        limit = manifest.geometry.L_max
    if needed > limit:
        longest = questions.lengths[-1]
        raise UserError(
            f"tasks of {longest} tokens and their answers need {needed} positions, there are "
            f"{limit}",
            f"use --lengths up to {longest - (needed - limit)}",
        )
    return max(needed, manifest.geometry.L_max)
