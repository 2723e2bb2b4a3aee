"""Lays out an evaluation as a grid: requests x systems x modes, checked before anything is loaded.

Knows neither how it is run nor what comes of it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from filecmp import cmp

import snapexport
from snapexport.compare.documents import open_tokenizer, read_documents
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.model_facts import ModelFacts
from snapexport.errors import UserError, flag_of, needs_extra
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.measure.eval.requests import Requests, frame_of
from snapexport.measure.eval.sample import as_it_is
from snapexport.measure.eval.side_by_side import HasPrompt, is_measured
from snapexport.measure.eval.systems import System, SystemMaker, typical_layer
from snapexport.measure.options import DEFAULT_TASKS, EvalOptions
from snapexport.vault import CHECKPOINT


@dataclass(frozen=True)
class Grid:
    """Every sample goes through every system in every mode, and so does every prompt of documents.

    hit_samples: as given, or 0 where attention can't be recomputed (soft-capped scores).
    seconds: for the samples of tasks.
    """

    build: Build
    options: EvalOptions
    requests: Requests
    systems: tuple[System, ...]
    hit_samples: int
    seconds: float

    @property
    def is_alone(self) -> bool:
        """Whether the build's own cache is compared with nothing, as it has no traces."""
        return not self.build.manifest.traces

    @property
    def records(self) -> int:
        """The number of outcomes, continuations and answers."""
        asked = len(self.requests.cells()) * len(self.systems) * len(self.options.modes)
        prompts: list[HasPrompt] = [*self.requests.prompts, *self.requests.instructions]
        return asked + sum(is_measured(system, each) for each in prompts for system in self.systems)

    def fingerprint(self) -> str:
        """Equal for equal requests to equal caches of the same build."""
        requests, options, manifest = self.requests, self.options, self.build.manifest
        facts = [
            snapexport.__version__,
            [file.model_dump() for file in manifest.weights],
            [entry.sha256 for entry in (*manifest.graphs.values(), *manifest.traces.values())],
            [options.chosen_tasks, requests.lengths, options.depths, options.samples],
            [options.seed, requests.aging, requests.answer_tokens, options.modes],
            [options.backend, options.device, options.precision],
            [requests.frame is not as_it_is, [asdict(document) for document in requests.haystack]],
            [[prompt.passage.ids, prompt.length, prompt.tokens] for prompt in requests.prompts],
            [asdict(instruction) for instruction in requests.instructions],
            [asdict(system) for system in self.systems],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def make_grid(build: Build, options: EvalOptions) -> Grid:
    """The grid of an evaluation. Raises UserError where the build can't run it."""
    _require_usable(build, options)
    _require_full(options)
    seconds = options.seconds
    options = _with_tasks(build, options)
    model, own = build.manifest.model, build.manifest.geometry
    lengths = tuple(sorted(options.lengths or (_default_length(own, model),)))
    budgets = tuple(sorted(options.budgets or (typical_layer(own, model).size,)))
    draft = _systems(build, own.L_max, options, budgets)
    _require_fitting(build, lengths, draft)
    ring = max(system.ring for system in draft)
    requests = Requests(
        open_tokenizer(build.directory),
        options,
        lengths,
        tuple(read_documents(options.documents)),
        frame_of(build, options.chat),
        aging=ring + 1,
        answer_tokens=ring + 1,
    )
    requests.require_fit()
    L_max = _positions(build, requests, draft)
    systems = _systems(build, L_max, options, budgets)
    with needs_extra("build"):  # torch, after all that can be refused without it
        from snapexport.builder.derive import is_soft_capped, require_chunk
    for system in draft:
        if system.geometry.compresses:
            require_chunk(build.manifest.prefill_chunk, system.geometry)
    has_other_scores = any(layer.sinks for layer in model.layers) or (
        options.hit_samples > 0 and is_soft_capped(build)
    )
    hit_samples = 0 if has_other_scores else options.hit_samples
    return Grid(build, options, requests, tuple(systems), hit_samples, seconds)


def _systems(
    build: Build, L_max: int, options: EvalOptions, budgets: tuple[int, ...]
) -> list[System]:
    """The systems of the options, or only the build's own cache where it has no traces."""
    manifest, own = build.manifest, build.manifest.geometry
    if not manifest.traces:
        return [System(own.policy, typical_layer(own, manifest.model).size, own)]
    maker = SystemMaker(manifest.model, L_max, own, manifest.prefill_chunk)
    return maker.systems(options.policies, budgets)


def _with_tasks(build: Build, options: EvalOptions) -> EvalOptions:
    """The options, by default with the one task whose words the bundled tokenizer knows."""
    if options.tasks is not None or options.documents:
        return options
    own, bundled = build.directory / TOKENIZER, CHECKPOINT / TOKENIZER
    is_bundled = own.is_file() and cmp(own, bundled, shallow=False)
    return replace(options, tasks=("vault",) if is_bundled else DEFAULT_TASKS)


def _require_usable(build: Build, options: EvalOptions) -> None:
    wanted = {"policies", "budgets", "hit_samples", "instructions"}
    if not build.manifest.traces and (found := sorted(wanted & options.chosen)):
        raise UserError(
            f"{build.directory} has no baseline, and {flag_of(found[0])} compares it with caches "
            "that are made from its traces",
            "build it again with --baseline (and any policy but full), or leave it out",
        )
    build.require_run(hit_samples=options.hit_samples, **options.running)


def _require_full(options: EvalOptions) -> None:
    if options.documents and "full" not in options.policies:
        raise UserError(
            "--documents compares caches with the full one, which --policies lacks",
            f"use --policies full {' '.join(options.policies)}",
        )


def _default_length(own: CacheGeometry, model: ModelFacts) -> int:
    """Half of what the build takes, and more than its cache: the answer needs room too."""
    most = max(1, own.L_max - max(64, own.L_max // 16))
    return min(most, max(most // 2, typical_layer(own, model).size + 1))


def _require_fitting(build: Build, lengths: tuple[int, ...], systems: list[System]) -> None:
    L_max, longest = build.manifest.geometry.L_max, lengths[-1]
    if longest > L_max:
        raise UserError(
            f"a task of {longest} tokens is longer than the build's --L-max {L_max}",
            f"use --lengths up to {L_max}, or build again with a larger --L-max",
        )
    for system in systems:
        if system.geometry.compresses and system.slots >= longest:
            raise UserError(
                f"a budget of {system.slots} slots holds whole prompts of {longest} tokens",
                "use smaller --budgets, or longer --lengths",
            )


def _positions(build: Build, requests: Requests, systems: Sequence[System]) -> int:
    """L_max of the caches: room for the longest request in the full one, and for what is fed
    after a prompt.

    Raises UserError.
    """
    manifest = build.manifest
    after = max(system.geometry.L_max - system.geometry.longest_prompt for system in systems)
    needed = max(requests.positions(), requests.longest_prompt() + after)
    limit = manifest.model.max_position_embeddings
    alone_and_full = not manifest.traces and not manifest.geometry.compresses
    if manifest.single_shot or alone_and_full:  # its prefill or its cache takes just this many
        limit = manifest.geometry.L_max
    if needed > limit:
        longest = requests.lengths[-1]
        left = longest - (needed - limit)
        raise UserError(
            f"prompts of {longest} tokens and their answers need {needed} positions, there are "
            f"{limit}",
            f"use --lengths up to {left}" if left > 0 else "ask for shorter answers",
        )
    return max(needed, manifest.geometry.L_max)
