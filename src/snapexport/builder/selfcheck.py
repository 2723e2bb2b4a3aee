"""Compares a small decoder of the checkpoint with transformers before anything is built.

A build verifies itself where no test of ours holds its family, and where it is asked to. It takes
the checkpoint's own weights, a few layers and a few rows of the vocabulary, and windows so short
that a prompt of 100 tokens crosses them: then whatever the exporter took for granted about a model
shows in the logits. The graphs come from the usual stages, in fp32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress, Silent
from snapexport.builder.resolved import ResolvedBuild
from snapexport.builder.stages import write_into
from snapexport.builder.staging import scratch
from snapexport.compare.difference import HINT
from snapexport.compare.layers import Cost, compared_places, fewest_places
from snapexport.compare.sample import Sample, Sizes, require_same_parts, sample_of, stand_in
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import Verified
from snapexport.contract.memory import spelled
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.slots import LayerGeometry, Slots
from snapexport.contract.targets import capabilities
from snapexport.contract.vote import Vote
from snapexport.errors import UserError, first_line
from snapexport.exporter.model import model_facts
from snapexport.exporter.read.families import is_held
from snapexport.exporter.weights import shapes
from snapexport.runtime.engine.backend import GraphError

_SINKS, _LONGEST_POOL = 4, 7


def verify_if_due(resolved: ResolvedBuild, progress: Progress) -> Verified | None:
    """Compare, but for a family that tests hold in usual widths, unless the options ask for it.

    Raises UserError for graphs that differ.
    """
    known = is_held(resolved.decoder.family) and not resolved.model.features["unfused_widths"]
    if known and not resolved.options.verify:
        return None
    with _in_users_words():
        return verify(resolved, progress)


@contextmanager
def _in_users_words() -> Iterator[None]:
    """Graphs that can't run, or a model that can't be watched, are refused."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, UserError) and not isinstance(error, GraphError):
            raise
        raise UserError(
            "graphs of a few of its layers can't be compared with transformers: "
            f"{type(error).__name__}: {first_line(error)!s:.200}",
            HINT,
        ) from error


def verify(resolved: ResolvedBuild, progress: Progress) -> Verified:
    """Compare, whatever the family: layers of the checkpoint, or a small model of its config."""
    from snapexport.compare.check import check  # ONNX Runtime and Polygraphy

    options, decoder = resolved.options, resolved.decoder
    checkpoint, stored = resolved.checkpoint, resolved.stored
    nbytes = shapes.bytes_of_layers(decoder)
    places = compared_places(decoder, nbytes)
    with scratch(options.out) as directory:
        if places:
            cost = Cost.of(sum(nbytes[place] for place in places))
            compared = f"{len(places)} of {len(decoder.layers)} layers"
        else:
            places, cost = fewest_places(decoder), Cost.of(0)
            require_same_parts(stored, decoder, places)
            decoder, checkpoint, stored = stand_in(decoder, options.L_max, directory / "model")
            compared = f"a small model, since a layer has {spelled(max(nbytes))} in fp32,"
        progress.stage(f"comparing {compared} with transformers: {cost}")
        sizes = Sizes.of(resolved.model.max_position_embeddings)
        sample = sample_of(decoder, places, sizes, checkpoint, stored)
        found = check(
            sample,
            lambda small, folder: _write(small, resolved, folder),
            resolved.geometry.L_max,
            directory,
        )
    return found.model_copy(update={"miniature": decoder is not resolved.decoder})


def _write(sample: Sample, resolved: ResolvedBuild, directory: Path) -> Build:
    """Build the sample in an empty directory, with a baseline.

    Options that any model's graphs share are left out: this is about the model and the vote.
    ONNX Runtime runs portable graphs in the place of a GPU's.
    """
    asked, sizes = resolved.options, sample.sizes
    checkpoint = replace(sample.checkpoint, generation_config={"eos_token_id": []})
    model = model_facts(sample.decoder, checkpoint)
    options = BuildOptions(
        model=asked.model,
        out=directory,
        L_max=sizes.L_max,
        batch=1,
        decode_batches=(),
        target="portable" if capabilities(asked.target).runs_on_gpu else asked.target,
        baseline=True,
        graph=GraphOptions(methods=tuple(one for one in asked.graph.methods if one.self_checked)),
    )
    small = ResolvedBuild(
        options=options,
        stored=checkpoint,
        checkpoint=checkpoint,
        texts={},
        decoder=sample.decoder,
        model=model,
        geometry=_geometry(resolved.geometry, model, sizes),
        chunks=(sizes.chunk,),
        prefill_capacities=[],
    )
    return write_into(directory, small, Silent())


def _geometry(wanted: CacheGeometry, model: ModelFacts, sizes: Sizes) -> CacheGeometry:
    """A small cache of a build's vote: its sinks and its stages, a short window and pool."""
    vote, part = wanted.vote, sizes.L_max // 8
    votes = wanted.votes or wanted.policy == "full"
    sinks = min(_SINKS, max(layer.L_sink for layer in wanted.layers))
    voting = LayerGeometry(sinks, part, part if votes else 0)
    rings = [layer.ring(sizes.L_max) or voting for layer in model.cached.values()]
    slots = Slots.of(rings, model.num_hidden_layers, model.cache_of or ())
    small = Vote(
        L_obs=min(vote.L_obs, part),
        pool_kernel=min(vote.pool_kernel, _LONGEST_POOL),
        vote=vote.vote,
        pool=vote.pool,
        softmax=vote.softmax,
        group=vote.group,
    )
    return CacheGeometry("snapstream", sizes.L_max, slots, small)
