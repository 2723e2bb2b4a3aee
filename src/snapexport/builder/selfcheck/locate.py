"""Finds the first layer of a sample after which its graphs differ from transformers' model."""

from collections.abc import Sequence
from pathlib import Path

from snapexport.builder.resolved import ResolvedBuild
from snapexport.builder.selfcheck import graphs
from snapexport.builder.selfcheck.bare import without_layers
from snapexport.builder.selfcheck.difference import difference, is_same
from snapexport.builder.selfcheck.reference import Reference
from snapexport.builder.selfcheck.sample import Sample

AROUND = "the embedding, the last norm or the head"
INSEPARABLE = "one of its layers, of which none can be left out"


def first_wrong(
    sample: Sample, resolved: ResolvedBuild, tokens: Sequence[int], directory: Path
) -> str:
    """In words, what differs first of a sample that differs. directory: for graphs."""
    if sample.decoder.layers_read_their_own:
        return INSEPARABLE
    depth, layers = sample.decoder.depth, sample.decoder.layers
    least = next(place for place, layer in enumerate(layers) if layer.cache_of != -1)
    right, wrong = least, len(depth)  # graphs without a cache aren't built
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if _is_right(sample.first(middle), resolved, tokens, directory / f"first-{middle}"):
            right = middle
        else:
            wrong = middle
    if wrong == 1 and not _is_right_around(sample, resolved, tokens, directory / "bare"):
        return AROUND
    if wrong == least + 1 > 1:
        return f"one of the layers {depth[0]} to {depth[least]}"
    return f"layer {depth[wrong - 1]}"


def _is_right(
    sample: Sample, resolved: ResolvedBuild, tokens: Sequence[int], directory: Path
) -> bool:
    """Whether the graphs of a sample prefill as transformers does."""
    directory.mkdir()
    expected = Reference(sample).answer(tokens).logits
    build = graphs.build_of(sample, resolved, directory)
    run = graphs.of_full_cache(build, tokens, len(tokens))
    return is_same(difference(run.logits, expected))


def _is_right_around(
    sample: Sample, resolved: ResolvedBuild, tokens: Sequence[int], directory: Path
) -> bool:
    """The same of what is around the layers."""
    bare = sample.first(0)
    expected = Reference(bare).answer(tokens).logits
    directory.mkdir()
    try:
        logits = without_layers(bare, resolved.checkpoint, tokens, directory)
    except Exception:  # a model that can't be without layers: one of them is named then
        return True
    return is_same(difference(dict(enumerate(logits)), expected))
