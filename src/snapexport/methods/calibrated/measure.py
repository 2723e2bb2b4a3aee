"""Measures what queries of texts are like before RoPE, for `--vote-queries calibrated`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
from polygraphy.logger import G_LOGGER

from snapexport.builder.derive import derive
from snapexport.builder.graph_files import Traces
from snapexport.builder.options import BuildOptions
from snapexport.builder.staging import scratch
from snapexport.compare.loaders import Array
from snapexport.compare.loop import Loop
from snapexport.compare.method import MethodMeasure, Source, Texts
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import markers
from snapexport.methods.calibrated.queries import LayerQueries, MeanQueries
from snapexport.methods.calibrated.surgery import Rotation, rotation_of


def _require_queries(build: Build) -> None:
    """Raise UserError for a build whose queries cannot be measured."""
    manifest = build.manifest
    build.require_run(command="calibrate")
    facts = {"vote_queries": "calibrated", "tensor_parallel": manifest.tensor_parallel}
    require_compatible(facts | manifest.model.features)
    if manifest.prefill_chunk >= manifest.geometry.L_max:
        raise UserError(
            f"{build.directory} prefills a prompt at once, and shows no queries",
            "calibrate with a build whose --prefill-chunk is below --L-max",
        )
    if not any(layer.reach == 0 for layer in manifest.model.cached.values()):
        raise UserError(
            f"no layer of {build.directory} votes: each has a sliding window",
            "leave --vote-queries out for this model",
        )


def measure_mean_queries(
    build: Build, prompts: Sequence[Sequence[int]], on_prompt: Callable[[], None]
) -> MeanQueries:
    """Means over the last prefill chunk of each prompt (token ids). on_prompt: called after each.

    Raises UserError for a build without traces (`--baseline`), or queries that RoPE does not give.
    """
    rotations = _rotations(build)
    sums: dict[int, list[Array]] = {layer: [np.zeros(()), np.zeros(())] for layer in rotations}
    count = 0
    with _open_with_queries(build, max(map(len, prompts))) as loop:
        for prompt in prompts:
            states, taken = loop.prompt_states(prompt), _count_of(build, prompt)
            for layer, rotation in rotations.items():
                window = np.asarray(states[names.query_window(layer)], np.float32)
                queries = window[0, :, -taken:].astype(np.float64)
                sums[layer][0] = sums[layer][0] + queries.sum(1)
                sums[layer][1] = sums[layer][1] + np.abs(rotation.paired(queries)).sum(1)
            count += taken
            on_prompt()
    layers = {
        layer: LayerQueries(*(one.astype(np.float32) / np.float32(count) for one in pair))
        for layer, pair in sums.items()
    }
    return MeanQueries(layers, build.manifest.model.num_hidden_layers)


def _queries_of(build: Build, prompts: Sequence[Sequence[int]]) -> int:
    """The number of queries of each head that are measured."""
    return sum(_count_of(build, prompt) for prompt in prompts)


def _count_of(build: Build, prompt: Sequence[int]) -> int:
    return min(len(prompt), build.manifest.prefill_chunk)


def _rotations(build: Build) -> dict[int, Rotation]:
    """RoPE of each layer that votes."""
    graph = gs.import_onnx(Traces.of(build).models["prefill"])
    voting = {index for index, layer in build.manifest.model.cached.items() if not layer.reach}
    return {
        layer: rotation_of(marker.inputs[0])
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION)
        if layer in voting
    }


def _before_rope(query: gs.Tensor) -> gs.Tensor:
    return rotation_of(query).taken


@contextmanager
def _open_with_queries(build: Build, longest: int) -> Iterator[Loop]:
    """Graphs whose window is a whole chunk, with its queries before RoPE.

    longest: of the prompts. A cache of the build's L_max may be far larger.
    """
    manifest, chunk = build.manifest, build.manifest.prefill_chunk
    sizes = {"L_sink": 0, "L_recent": chunk, "K": 1, "L_obs": chunk, "pool_kernel": 1}
    L_max = max(longest, chunk + 1)  # of chunks, not of a single shot
    options = BuildOptions.of(model="", out=build.directory, L_max=L_max, **sizes)
    with scratch(build.directory.resolve()) as directory:
        geometry = options.geometry(manifest.model)
        out = directory / "queries"
        exact = replace(manifest.graph_options, prompt_cache_dtype=None)
        watched = derive(build, geometry, out, exact, shown=_before_rope, link_weights=True)
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL), Loop(watched) as loop:
            yield loop


class CalibratedMeasure(MethodMeasure):
    """Averages queries before RoPE, for `build --mean-queries`."""

    def require(self, build: Build) -> None:
        _require_queries(build)

    def calibrate(self, texts: Texts, source: Source) -> tuple[bytes, Source, str]:
        if texts.backend not in (None, "onnxruntime"):
            raise UserError(
                f"--mean-queries is not supported with --backend {texts.backend}",
                "leave --backend out: queries are measured on the CPU",
            )
        queries = measure_mean_queries(texts.build, texts.prompts, texts.on_prompt)
        count = _queries_of(texts.build, texts.prompts)
        words = f"{count} queries of each head"
        return queries.text(source).encode(), {"queries_of_a_head": count}, words


MEASURE = CalibratedMeasure()
