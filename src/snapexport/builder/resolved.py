"""A build before its work begins: its inputs are read and checked, its defaults are filled in."""

from dataclasses import dataclass, replace

from snapexport.builder.copied import read_texts
from snapexport.builder.options import BuildOptions
from snapexport.builder.prefill_sizes import capacities
from snapexport.builder.template_tail import template_tail
from snapexport.builder.weights_flag import with_weights
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import uneven_batch
from snapexport.contract.model_facts import ModelFacts
from snapexport.exporter import (
    architectures,
    conversion,
    decoders,
    derived,
    hub,
    shapes,
    weights,
)
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.opening import open_checkpoint, with_tokenizer
from snapexport.exporter.ranks import require_ranks
from snapexport.methods import table
from snapexport.methods.short_chunks.spec import short_chunks


@dataclass(frozen=True)
class ResolvedBuild:
    """A build before its work begins: inputs read, defaults filled in.

    stored: the checkpoint as it was read. checkpoint: with the tensors that graphs have. texts: the
    files that are copied, by name.
    """

    options: BuildOptions
    stored: Checkpoint
    checkpoint: Checkpoint
    texts: dict[str, bytes]
    decoder: architectures.Decoder
    model: ModelFacts
    geometry: CacheGeometry
    prefill_chunk: int
    prefill_capacities: list[int]
    short_chunks: list[int]


def resolve(options: BuildOptions) -> ResolvedBuild:
    """Read headers and configs. Raises UserError for a model or options that cannot be built."""
    checkpoint = open_checkpoint(hub.resolve(options.model))
    if options.link_weights:
        weights.require_linkable(checkpoint)
    options = with_weights(options, checkpoint)
    decoder = decoders.load_decoder(
        checkpoint, longrope_for=options.L_max if options.longrope else None
    )
    model = architectures.model_facts(decoder, checkpoint)
    folder, is_gguf = with_tokenizer(checkpoint), checkpoint.gguf is not None
    texts = read_texts(folder, model.vocab_size, is_whole=is_gguf)
    geometry = options.geometry(model, template_tail(texts, checkpoint.source))
    options.graph.require_model(model)
    require_ranks(checkpoint, decoder, options.tensor_parallel)
    batches = [*options.smaller_batches, options.batch]
    uneven = uneven_batch(options.tensor_parallel, batches)
    require_compatible(options.flags | {"uneven_slots": uneven})
    stored, checkpoint = checkpoint, conversion.by_model_names(checkpoint, decoder)
    shapes.require_tensors(checkpoint, decoder)
    stored = replace(stored, told=(*stored.told, *shapes.unread(checkpoint, decoder)))
    for method in table.methods_on(geometry, options.graph):
        if export := method.part("export"):
            export.require(checkpoint, decoder)
    checkpoint = derived.with_derived(checkpoint, decoder)
    chunk = options.chunk(geometry)
    return ResolvedBuild(
        options=options,
        stored=stored,
        checkpoint=checkpoint,
        texts=texts,
        decoder=decoder,
        model=model,
        geometry=geometry,
        prefill_chunk=chunk,
        prefill_capacities=capacities(options, chunk),
        short_chunks=short_chunks(
            options.graph,
            geometry,
            chunk,
            copies_weights=options.copies_weights or options.holds_integers,
        ),
    )
