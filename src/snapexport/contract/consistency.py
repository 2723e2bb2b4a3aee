"""Compares a manifest's facts with each other, and keeps its file names inside of the build.

Does not know the files themselves.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import PurePosixPath

from snapexport.contract.exclusions import require_compatible, resolved
from snapexport.contract.graph_options import uneven_batch
from snapexport.contract.manifest import REBUILD, Manifest
from snapexport.contract.model_facts import LayerHeads, ModelFacts
from snapexport.contract.rule import Facts
from snapexport.contract.vote import Vote
from snapexport.errors import UserError
from snapexport.methods import table
from snapexport.methods.table import recorded_flags


def require_closed(manifest: Manifest) -> None:
    """Raise UserError for facts that contradict each other, or a name that leads away."""
    _require_numbers(manifest)
    _require_layers(manifest)
    _require_ranks(manifest)
    _require_names(manifest)
    _require_options(manifest)


def _require_numbers(manifest: Manifest) -> None:
    model, geometry = manifest.model, manifest.geometry
    _require_range("geometry.L_max", geometry.L_max, 1, model.max_position_embeddings)
    least = geometry.vote.L_obs if geometry.compresses else 1
    _require_range("prefill_chunk", manifest.prefill_chunk, least, geometry.L_max)
    for tokens in manifest.short_chunks:
        _require_range("short chunk", tokens, least, manifest.prefill_chunk - 1)
    recorded = recorded_flags(manifest.graph_options)
    facts = {**recorded, **geometry.chunk_facts(manifest.prefill_chunk)}
    require_compatible(facts | {"short_chunks": tuple(manifest.short_chunks)})
    manifest.graph_options.require_chunk(manifest.prefill_chunk, geometry.L_max)
    for token in model.eos_token_id:
        _require_range("model.eos_token_id", token, 0, model.vocab_size - 1)


def _require_ranks(manifest: Manifest) -> None:
    """What is cut has equal parts, and nothing is there that several ranks don't have."""
    ranks, model = manifest.tensor_parallel, manifest.model
    counts = [model.vocab_size, *(layer.heads for layer in model.layers)]
    counts += [] if model.latent else model.kv_heads
    if any(count % ranks for count in counts):
        raise UserError(f"the manifest's model cannot be cut for {ranks} ranks", REBUILD)
    if ranks > 1 and manifest.engines:
        raise UserError("the manifest has several ranks, and engines", REBUILD)
    uneven = uneven_batch(ranks, manifest.decode_graphs())
    require_compatible({**recorded_flags(manifest.graph_options), "uneven_slots": uneven})


def _require_layers(manifest: Manifest) -> None:
    """Compare what the model and the geometry say of each layer."""
    model, geometry = manifest.model, manifest.geometry
    layers = model.num_hidden_layers
    if not layers == geometry.slots.num_layers == len(model.sliding_window):
        raise UserError(
            f"the manifest's model has {layers} layers, its geometry {geometry.slots.num_layers}, "
            f"and {len(model.sliding_window)} have windows",
            REBUILD,
        )
    if geometry.slots.cache_of != (model.cache_of or ()):
        raise UserError("the manifest's geometry shares other caches than its model", REBUILD)
    for index, heads in enumerate(model.layers):
        _require_heads(model, index, heads)
    for cache, shape in zip(geometry.slots.caches, geometry.layers, strict=True):
        heads, found = model.layer(cache.layer), replace(shape, spare=0)
        ring = heads.ring(geometry.L_max) if geometry.compresses else None
        if found != (ring or replace(found, chunk=0)):
            raise UserError(
                f"the manifest's layer {cache.layer} slides over {heads.reach} "
                f"positions, and its cache has {shape.L_sink} + {shape.L_recent} + {shape.K} slots",
                REBUILD,
            )
    _require_head_groups(manifest)


def _require_heads(model: ModelFacts, index: int, heads: LayerHeads) -> None:
    if heads.heads % heads.kv_heads:
        raise UserError(
            f"the manifest's {heads.heads} heads are no multiple of its {heads.kv_heads} KV heads "
            f"(layer {index})",
            REBUILD,
        )
    if model.kv_lora_rank:
        _require_range("model.kv_lora_rank", model.kv_lora_rank, 1, heads.query_dim - 1)
        _require_range("model.num_key_value_heads", heads.kv_heads, 1, 1)
        _require_range("model.value_head_dim", sum(heads.widths), heads.query_dim, heads.query_dim)

    if heads.cache_of == -1:
        return
    source = model.layer(heads.cache_of)
    if heads._replace(heads=source.heads, sinks=source.sinks) != source:
        raise UserError(
            f"the manifest's layer {index} reads the cache of layer {heads.cache_of}, whose heads "
            "or window are others",
            REBUILD,
        )


def _require_head_groups(manifest: Manifest) -> None:
    model, groups = manifest.model, manifest.geometry.slots.head_groups
    if not groups:
        return
    grouped = sum(map(len, groups[0]))
    if {*model.kv_heads} != {grouped}:
        raise UserError(f"the manifest's head groups are of {grouped} KV heads", REBUILD)
    if not manifest.geometry.compresses:
        raise UserError("the manifest's head groups are not those of a build", REBUILD)


def _require_options(manifest: Manifest) -> None:
    """The graph options are resolved, so they are what they resolve to."""
    options, model = manifest.graph_options, manifest.model
    options.require_model(model)
    require_compatible(_facts(manifest))
    again = resolved(options, manifest.target, manifest.dtype)
    if not manifest.geometry.compresses:
        again = again.of_full_cache()
    if again != options:
        raise UserError(
            f"the manifest's graph options {options!r:.200} are not those of a build", REBUILD
        )


def _facts(manifest: Manifest) -> Facts:
    """What the table of exclusions asks about: no flag that a manifest can't know."""
    geometry, queries = manifest.geometry, manifest.geometry.vote.vote_queries
    known = {**recorded_flags(manifest.graph_options)}
    for method in table.METHODS:
        known |= method.facts(geometry)
    return (
        known
        | {
            "policy": geometry.policy,
            "weights": manifest.quantization,
            "target": manifest.target,
            "dtype": manifest.dtype,
            "tensor_parallel": manifest.tensor_parallel,
            "baseline": bool(manifest.traces),
        }
        | manifest.model.features
        | ({} if queries == Vote().vote_queries else {"vote_queries": queries})
    )


def _require_names(manifest: Manifest) -> None:
    weights = [weight.file for weight in manifest.weights]
    if len(set(weights)) < len(weights):
        raise UserError("the manifest names a weight file twice", REBUILD)
    for file in (*weights, *_other_files(manifest)):
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(
                f"the manifest names {file!r:.200}, which is outside of the build", REBUILD
            )


def _other_files(manifest: Manifest) -> Iterator[str]:
    segments = chain.from_iterable(manifest.segments.values())
    for entry in (*manifest.graphs.values(), *manifest.traces.values(), *segments):
        yield entry.file
    for engine in manifest.engines.values():
        yield from (graph.file for graph in engine.graphs.values())
        if engine.plugins:
            yield engine.plugins.file


def _require_range(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"the manifest's {what} is {value}, not from {least} to {most}", REBUILD)
