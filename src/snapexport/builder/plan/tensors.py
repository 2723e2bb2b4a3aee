"""Counts the tensors of a build that is not made yet: caches, and what graphs hand on."""

from dataclasses import dataclass

from snapexport.builder import BuildOptions
from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.interface import graph_specs
from snapexport.contract.manifest import FORMAT_VERSION, Manifest
from snapexport.contract.memory import planned_bytes
from snapexport.contract.model_facts import ModelFacts


@dataclass(frozen=True)
class PlannedTensors:
    """Bytes by the specs of a build's graphs, for one batch slot.

    request_cache: of decode, with the ring of multi-token prediction. prompt_cache: of prefill, of
    full length. outputs: of prefill and the compress step, beside caches; of votes, before and
    after a chunk.
    """

    request_cache: int
    prompt_cache: int
    outputs: int

    @classmethod
    def of(
        cls, facts: ModelFacts, options: BuildOptions, geometry: CacheGeometry, chunk: int
    ) -> "PlannedTensors":
        """geometry, chunk: those of `options` for a model of these facts."""
        request, prompt, outputs = 0, 0, 0
        for name, given, made in graph_specs(_manifest(facts, options, geometry, chunk)):
            caches = planned_bytes(spec for key, spec in given.items() if names.is_past(key))
            fresh = planned_bytes(spec for key, spec in made.items() if not names.is_present(key))
            kind = graph_of(name).kind
            request += caches if kind.owns_caches and kind.rows == "batch" else 0
            prompt += caches if name == "prefill" else 0
            outputs += fresh if name in ("prefill", "compress") else 0
            outputs += 2 * fresh if kind.counts_votes and name != "compress" else 0
        return cls(request, prompt, outputs)


def _manifest(
    facts: ModelFacts, options: BuildOptions, geometry: CacheGeometry, chunk: int
) -> Manifest:
    """The manifest of the build, for one batch slot in one rank, without files."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model=facts,
        geometry=geometry,
        batch=1,
        prefill_chunk=chunk,
        dtype=options.dtype,
        quantization=options.quantization,
        target=options.target,
        graph_options=options.graph.recorded(),
        graphs={},
        traces={},
        tensor_parallel=1,
        segments={},
        weights=[],
        linked_weights=False,
        engines={},
        versions={},
    )
