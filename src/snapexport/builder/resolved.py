"""Resolves a build before its work begins: reads and checks its inputs, fills in its defaults."""

import json
from dataclasses import dataclass, replace

from snapexport.builder.options import BuildOptions
from snapexport.builder.texts import read_texts, template_tail
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.geometry import CacheGeometry, require_capacities
from snapexport.contract.graph_options import uneven_batch
from snapexport.contract.manifest import AdapterEntry
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, model_facts, probe
from snapexport.exporter.model.ranks import require_ranks
from snapexport.exporter.read import local_path, open_checkpoint, with_tokenizer
from snapexport.exporter.read.adapter import open_adapter
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.folders import CONFIG
from snapexport.exporter.weights import conversion, derived, shapes
from snapexport.exporter.weights.adapter import Opened, untied_config, with_adapter
from snapexport.exporter.weights.forms import fp8
from snapexport.exporter.weights.place import require_linkable
from snapexport.exporter.weights.readers import read_quantization
from snapexport.methods import table
from snapexport.runtime.requests.generation_config import sampling_of


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
    adapter: AdapterEntry | None = None

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a whole chunk."""
        return self.chunks[-1]


def resolve(options: BuildOptions) -> ResolvedBuild:
    """Read headers and configs. Raises UserError for a model or options that cannot be built."""
    opened = _open(options)
    options, decoder = _with_weights(options, opened), opened.decoder
    stored, checkpoint = opened.stored, opened.checkpoint
    model = model_facts(decoder, stored)
    sampling_of(stored.generation_config, stored.directory)
    folder, is_gguf = with_tokenizer(stored), stored.gguf is not None
    texts = read_texts(folder, model.vocab_size, is_whole=is_gguf)
    if opened.unties:
        texts[CONFIG] = json.dumps(untied_config(json.loads(texts[CONFIG])), indent=2).encode()
    geometry = options.geometry(model, template_tail(texts, stored.source))
    options.graph.require_model(model)
    require_ranks(stored, decoder, options.tensor_parallel)
    batches = [*options.smaller_batches, options.batch]
    uneven = uneven_batch(options.tensor_parallel, batches)
    require_compatible(options.flags | {"uneven_slots": uneven})
    shapes.require_tensors(checkpoint, decoder)
    notes = (
        *opened.notes(options.model, keeps=options.weights in (None, "keep")),
        *shapes.unread(checkpoint, decoder),
    )
    stored = replace(stored, left_out=(*stored.left_out, *notes))
    for method in table.methods_on(geometry, options.graph):
        if export := method.part("export"):
            export.require(checkpoint, decoder)
    checkpoint = derived.with_derived(checkpoint, decoder)
    chunks, own = options.chunks(geometry), opened.adapter
    return ResolvedBuild(
        options=options,
        stored=stored,
        checkpoint=checkpoint,
        texts=texts,
        decoder=decoder,
        adapter=AdapterEntry(name=own.name, sha256=own.sha256) if own else None,
        model=model,
        geometry=geometry,
        chunks=chunks,
        prefill_capacities=require_capacities(
            options.prefill_capacities, chunks[-1], options.L_max
        ),
    )


def _open(options: BuildOptions) -> Opened:
    """The checkpoint by both of its names, with the adapter if there is one."""
    stored = open_checkpoint(local_path(options.model))
    if options.link_weights:
        require_linkable(stored)

    def load(checkpoint: Checkpoint) -> Decoder:
        longrope_for = options.L_max if options.longrope else None
        return probe.load_decoder(checkpoint, longrope_for=longrope_for)

    decoder = load(stored)
    if options.adapter is None:
        return Opened(stored, conversion.by_model_names(stored, decoder), decoder)
    return with_adapter(stored, decoder, open_adapter(options.adapter), load)


def _with_weights(options: BuildOptions, opened: Opened) -> BuildOptions:
    """The options with their weights. Raises UserError for weights that the checkpoint lacks.

    Integers of a checkpoint are kept by default, unless other flags forbid it.
    """
    if options.weights == "fp8":
        fp8.require_fp8(opened.stored)
    elif options.weights == "keep" and not opened.integers:
        return _with_fp8(options, opened.stored)
    elif options.weights is None and capabilities(options.target).keeps(opened.integers):
        try:
            return options.keeping()
        except UserError:
            return options
    return options


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
