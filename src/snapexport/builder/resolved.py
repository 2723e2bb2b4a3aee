"""A build before its work begins: its inputs are read and checked, its defaults are filled in."""

from dataclasses import dataclass, replace

from snapexport.builder.copied import read_texts
from snapexport.builder.mean_queries import MeanQueries
from snapexport.builder.options import BuildOptions
from snapexport.builder.prefill_sizes import capacities, short_chunks
from snapexport.builder.template_tail import template_tail
from snapexport.builder.weights_flag import with_weights
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.model_facts import ModelFacts
from snapexport.exporter.model import Decoder, model_facts, probe
from snapexport.exporter.model.ranks import require_ranks
from snapexport.exporter.read import local_path, open_checkpoint, with_tokenizer
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.trace import mtp_layer
from snapexport.exporter.weights import conversion, derived, shapes
from snapexport.exporter.weights.place import require_linkable


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
    decoder: Decoder
    model: ModelFacts
    geometry: CacheGeometry
    prefill_chunk: int
    prefill_capacities: list[int]
    short_chunks: list[int]
    mean_queries: MeanQueries | None = None


def resolve(options: BuildOptions) -> ResolvedBuild:
    """Read headers and configs. Raises UserError for a model or options that cannot be built."""
    checkpoint = open_checkpoint(local_path(options.model))
    if options.link_weights:
        require_linkable(checkpoint)
    options = with_weights(options, checkpoint)
    decoder = probe.load_decoder(
        checkpoint, longrope_for=options.L_max if options.longrope else None
    )
    model = model_facts(decoder, checkpoint)
    folder, is_gguf = with_tokenizer(checkpoint), checkpoint.gguf is not None
    texts = read_texts(folder, model.vocab_size, is_whole=is_gguf)
    geometry = options.geometry(model, template_tail(texts, checkpoint.source))
    means = MeanQueries.read(options.mean_queries) if options.mean_queries else None
    if means:
        means.require_model(model)
    options.graph.require_vocabulary(model.vocab_size)
    require_ranks(checkpoint, decoder, options.tensor_parallel)
    batches = [*options.smaller_batches, options.batch]
    options.graph.require_ranks(options.tensor_parallel, batches)
    stored, checkpoint = checkpoint, conversion.by_model_names(checkpoint, decoder)
    shapes.require_tensors(checkpoint, decoder)
    stored = replace(stored, left_out=(*stored.left_out, *shapes.unread(checkpoint, decoder)))
    if options.graph.mtp:
        mtp_layer.require_layer(checkpoint, decoder)
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
        short_chunks=short_chunks(options, geometry, chunk),
        mean_queries=means,
    )
