"""Compares a small decoder of the checkpoint with transformers before anything is built.

A build verifies itself where no test of ours holds its family, and where it is asked to. It takes
the checkpoint's own weights, a few layers and a few rows of the vocabulary, and windows so short
that a prompt of 100 tokens crosses them: then whatever the exporter took for granted about a model
shows in the logits.
"""

from snapexport.builder.progress import Progress
from snapexport.builder.resolved import ResolvedBuild
from snapexport.builder.selfcheck.check import check
from snapexport.builder.selfcheck.cost import Cost
from snapexport.builder.selfcheck.places import compared_places, fewest_places
from snapexport.builder.selfcheck.sample import sample_of
from snapexport.builder.selfcheck.sizes import Sizes
from snapexport.builder.selfcheck.stand_in import require_same_parts, stand_in
from snapexport.builder.staging import scratch
from snapexport.contract.manifest import Verified
from snapexport.contract.memory import spelled
from snapexport.exporter.read.families import is_held
from snapexport.exporter.weights import shapes


def verified(resolved: ResolvedBuild, progress: Progress) -> Verified | None:
    """What was compared; None for a family that tests hold, unless the options ask for it.

    Raises UserError for graphs that differ.
    """
    if is_held(resolved.decoder.family) and not resolved.options.verify:
        return None
    return verify(resolved, progress)


def verify(resolved: ResolvedBuild, progress: Progress) -> Verified:
    """Compare, whatever the family: layers of the checkpoint, or a small model of its config."""
    decoder = resolved.decoder
    nbytes = shapes.bytes_of_layers(decoder)
    places = compared_places(decoder, nbytes)
    with scratch(resolved.options.out) as directory:
        if places:
            cost = Cost.of(sum(nbytes[place] for place in places))
            compared = f"{len(places)} of {len(decoder.layers)} layers"
        else:
            places, cost = fewest_places(decoder), Cost.of(0)
            require_same_parts(resolved, places)
            resolved = stand_in(resolved, directory / "model")
            compared = f"a small model, since a layer has {spelled(max(nbytes))} in fp32,"
        progress.stage(f"comparing {compared} with transformers: {cost}")
        sizes = Sizes.of(resolved.model.max_position_embeddings)
        sample = sample_of(resolved.decoder, places, sizes, resolved.checkpoint, resolved.stored)
        found = check(sample, resolved, directory)
    return found.model_copy(update={"miniature": decoder is not resolved.decoder})
