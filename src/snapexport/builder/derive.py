"""Derives a build with another cache from a build's own traces, without its checkpoint."""

import shutil
from dataclasses import replace
from pathlib import Path

from snapexport.builder.graph_files import Traces, finished_graphs, write_graph
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible, resolved
from snapexport.contract.geometry import CacheGeometry, Steps
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import WEIGHTS
from snapexport.errors import UserError
from snapexport.exporter.weights.place import place_again
from snapexport.graphs.markers import TRACE_DOMAIN
from snapexport.graphs.recipe import Recipe, Shown
from snapexport.methods import table

TOKENIZER = "tokenizer.json"


def derive(
    build: Build,
    geometry: CacheGeometry,
    out: Path,
    options: GraphOptions | None = None,
    *,
    with_queries: bool = False,
    shown: Shown | None = None,
    link_weights: bool = False,
) -> Build:
    """Make a build in the new directory `out` that differs from `build` only in its cache.

    options: graph options; None: those of `build`. The derived build has one decode graph, for all
    batch slots and one token of each, no graphs that need traces of their own, and no engines.
    with_queries, shown: as of `Recipe`. link_weights: without reflinks, hard-link the weights
    instead of copying them. Raises UserError if `build` has no traces (`--baseline`), or if its
    prefill chunk does not fit the geometry.
    """
    manifest = build.manifest
    traces = Traces.of(build)
    geometry = replace(geometry, steps=Steps())  # the other traces are not kept
    require_chunk(manifest.prefill_chunk, geometry)
    out.mkdir()
    linked = place_again(build.directory / WEIGHTS, out / WEIGHTS, link=link_weights)
    if (build.directory / TOKENIZER).is_file():
        shutil.copyfile(build.directory / TOKENIZER, out / TOKENIZER)
    options = _of_common_traces(options or manifest.graph_options)
    options = resolved(options, manifest.target, manifest.dtype)
    if not geometry.compresses:
        options = options.of_full_cache()
    recipe = Recipe(geometry, manifest.target, options, with_queries, shown)
    graphs = finished_graphs(traces, recipe)
    entries = {name: write_graph(name, model, out) for name, model in graphs.items()}
    changed = {
        "geometry": geometry,
        "graph_options": options,
        "graphs": entries,
        "traces": {},
        "linked_weights": linked,
        "engines": {},
    }
    manifest.model_copy(update=changed).write(out)
    return Build.open(out)


def _of_common_traces(options: GraphOptions) -> GraphOptions:
    """The options without those of methods that need traces of their own: none is kept."""
    own = [
        method.options
        for method in table.METHODS
        if any(not kind.traced_as for kind in method.kinds)
    ]
    kept = tuple(one for one in options.methods if type(one) not in own)
    return replace(options, methods=kept)


def is_soft_capped(build: Build) -> bool:
    """Whether scores are soft-capped (Gemma 2), which excludes `with_queries`."""
    nodes = [
        node for node in Traces.of(build).models["decode"].graph.node if node.domain == TRACE_DOMAIN
    ]
    return any(
        attribute.name == "softcap" and attribute.f > 0
        for node in nodes
        for attribute in node.attribute
    )


def require_chunk(prefill_chunk: int, geometry: CacheGeometry) -> None:
    """Raise UserError if a prefill chunk is shorter than the window W, or does not suit the tokens
    that vote after a prompt."""
    require_compatible(geometry.chunk_facts(prefill_chunk))
    if geometry.compresses and geometry.vote.L_obs > prefill_chunk:
        raise UserError(
            f"a window of {geometry.vote.L_obs} (L_obs) does not fit into the build's prefill "
            f"chunk of {prefill_chunk}",
            f"use {prefill_chunk} or less, or build it again with a larger --prefill-chunk",
        )
