"""A build's own graphs, and its full cache, as entrants."""

from functools import partial
from pathlib import Path

from snapexport.bench.contender import EngineContender, Entrant
from snapexport.bench.costs import Costs
from snapexport.bench.options import BenchOptions
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.executor import Limits
from snapexport.runtime.memory import cache_bytes
from snapexport.runtime.ort.backend import require_runnable


def entrants(build: Build, options: BenchOptions) -> list[Entrant]:
    """The build itself and, if wanted, its baseline. Raises UserError."""
    require_runnable(build, baseline=options.baseline)
    if not options.baseline:
        return [_entrant(build, options, baseline=False)]
    if not build.manifest.geometry.compresses:
        raise UserError(f"{build.directory} is a full cache already", "leave out --baseline")
    return [_entrant(build, options, baseline) for baseline in (False, True)]


def _entrant(build: Build, options: BenchOptions, baseline: bool) -> Entrant:
    manifest = build.manifest
    full_cache = baseline or not manifest.geometry.compresses
    limits, cache = Limits.of(manifest, full_cache=full_cache), cache_bytes(manifest)
    return Entrant(
        "full" if full_cache else manifest.geometry.policy,
        partial(load, build.directory, baseline, options.threads, options.prepack),
        limits.batch,
        limits.longest_prompt,
        limits.positions,
        Costs.of(build, full_cache=full_cache),
        cache.prefill + (cache.full if full_cache else cache.decode),
    )


def load(build: Path, baseline: bool, threads: int | None, prepack: bool) -> EngineContender:
    """Through the runtime's front door. Raises UserError."""
    from snapexport.runtime.llm import LLM

    llm = LLM(build, baseline=baseline, threads=threads, prepack=prepack)
    return EngineContender(llm.executor)
