"""Resolves a build before its work begins: reads and checks its inputs, fills in its defaults."""

from dataclasses import dataclass, replace
from math import prod

from snapexport.builder.options import BuildOptions
from snapexport.builder.texts import read_texts, template_tail
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.geometry import CacheGeometry, require_capacities
from snapexport.contract.graph_options import uneven_batch
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, model_facts, probe
from snapexport.exporter.model.ranks import require_ranks
from snapexport.exporter.read import local_path, open_checkpoint, with_tokenizer
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights import conversion, derived, shapes
from snapexport.exporter.weights.forms import fp8
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.place import require_linkable
from snapexport.exporter.weights.readers import read_quantization
from snapexport.methods import table


@dataclass(frozen=True)
class ResolvedBuild:
    """A build before its work begins: inputs read, defaults filled in.

    stored: the checkpoint as it was read. checkpoint: with the tensors that graphs have. texts: the
    files that are copied, by name. chunks: tokens of those that prefill graphs take, ascending.
    """

    options: BuildOptions
    stored: Checkpoint
    checkpoint: Checkpoint
    texts: dict[str, bytes]
    decoder: Decoder
    model: ModelFacts
    geometry: CacheGeometry
    chunks: tuple[int, ...]
    prefill_capacities: list[int]

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a whole chunk."""
        return self.chunks[-1]


def resolve(options: BuildOptions) -> ResolvedBuild:
    """Read headers and configs. Raises UserError for a model or options that cannot be built."""
    checkpoint = open_checkpoint(local_path(options.model))
    if options.link_weights:
        require_linkable(checkpoint)
    options = _with_weights(options, checkpoint)
    decoder = probe.load_decoder(
        checkpoint, longrope_for=options.L_max if options.longrope else None
    )
    model = model_facts(decoder, checkpoint)
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
    stored = replace(stored, left_out=(*stored.left_out, *shapes.unread(checkpoint, decoder)))
    for method in table.methods_on(geometry, options.graph):
        if export := method.part("export"):
            export.require(checkpoint, decoder)
    checkpoint = derived.with_derived(checkpoint, decoder)
    chunks = options.chunks(geometry)
    return ResolvedBuild(
        options=options,
        stored=stored,
        checkpoint=checkpoint,
        texts=texts,
        decoder=decoder,
        model=model,
        geometry=geometry,
        chunks=chunks,
        prefill_capacities=require_capacities(
            options.prefill_capacities, chunks[-1], options.L_max
        ),
    )


def _with_weights(options: BuildOptions, checkpoint: Checkpoint) -> BuildOptions:
    """The options with their weights. Raises UserError for weights that the checkpoint lacks.

    Integers of a checkpoint are kept by default, unless other flags forbid it.
    """
    if options.weights == "fp8":
        fp8.require_fp8(checkpoint)
    elif options.weights == "keep" and not _integers(checkpoint):
        return _with_fp8(options, checkpoint)
    elif options.weights is None and capabilities(options.target).keeps(_integers(checkpoint)):
        try:
            return options.keeping()
        except UserError:
            return options
    return options


def _integers(checkpoint: Checkpoint) -> list[tuple[int, int]]:
    """(bits, elements) of what the checkpoint has as integers."""
    found = (one for one in checkpoint.tensors.values() if isinstance(one, IntegerWeight))
    return [(one.form.bits, prod(one.shape)) for one in found]


def _with_fp8(options: BuildOptions, checkpoint: Checkpoint) -> BuildOptions:
    """`keep` for a checkpoint without integers: its fp8 weights, if the target takes them."""
    found = read_quantization(checkpoint.config)
    if found and found.kind == "fp8" and capabilities(options.target).fp8_weights:
        return replace(options, weights="fp8")
    raise UserError(
        f"--weights keep stores integers as the checkpoint has them, and {checkpoint.source} has "
        "none that the target takes",
        "leave it out; int8 or int4 round floats to integers",
    )
