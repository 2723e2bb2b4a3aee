"""Compares a sample's graphs with transformers' model of it."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.builder.resolved import ResolvedBuild
from snapexport.builder.selfcheck import graphs
from snapexport.builder.selfcheck.difference import difference, require_finite, require_same
from snapexport.builder.selfcheck.graphs import Run
from snapexport.builder.selfcheck.locate import first_wrong
from snapexport.builder.selfcheck.reference import Answer, Reference
from snapexport.builder.selfcheck.sample import Sample
from snapexport.builder.selfcheck.tokens import clear_tokens
from snapexport.builder.selfcheck.votes import require_same_vote, visible_after
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Verified


def check(sample: Sample, resolved: ResolvedBuild, directory: Path) -> Verified:
    """Compare everything. directory: an empty one, for graphs. Raises UserError if it differs."""
    reference, prompt = Reference(sample), sample.sizes.prompt
    tokens, answer = clear_tokens(reference, sample)
    require_finite(answer.logits)
    content = directory / "sample"
    content.mkdir()
    build = graphs.build_of(sample, resolved, content)
    full = graphs.of_full_cache(build, tokens, prompt)
    prefill = difference({p: one for p, one in full.logits.items() if p < prompt}, answer.logits)
    require_same(prefill, lambda: first_wrong(sample, resolved, tokens, directory))
    decode = difference({p: one for p, one in full.logits.items() if p >= prompt}, answer.logits)
    require_same(decode, lambda: "decode with the full cache")
    exact = max(prefill, decode, _in_blocks(build, tokens, answer))
    if not _has_a_ring_for_each_layer(build):
        return _record(sample, build, full, tokens, (), prompt, exact)
    far = _far_position(build, resolved, prompt)
    compressed = graphs.of_compressed_cache(build, tokens[: prompt + 1], far)
    geometry = build.manifest.geometry
    places = zip(sample.decoder.depth, sample.decoder.layers, strict=True)
    depth = [index for index, layer in places if layer.cache_of != -1]
    require_same_vote(compressed.kept, answer.attended, geometry, prompt, depth)
    after = _decoded(reference, build, compressed, tokens[: prompt + 1], far)
    require_same(after, lambda: f"decode of position {far} with the compressed cache")
    return _record(sample, build, full, tokens, compressed.kept, far, max(exact, after))


def _in_blocks(build: Build, tokens: Sequence[int], answer: Answer) -> float:
    """The difference of a prompt in blocks; 0 where no graph takes them."""
    if "extend" not in build.manifest.graphs:
        return 0.0
    found = difference(graphs.in_blocks(build, tokens), answer.logits)
    require_same(found, lambda: "a prompt in blocks")
    return found


def _has_a_ring_for_each_layer(build: Build) -> bool:
    """Whether every layer that attends has a cache of its own, and none attends in chunks.

    The compressed caches of others are not compared here.
    """
    geometry = build.manifest.geometry
    attending = [layer for layer in build.manifest.model.layers if layer.cache_of != -1]
    has_chunks = any(layer.chunk for layer in geometry.layers)
    return len(geometry.layers) == len(attending) and not has_chunks


def _record(
    sample: Sample,
    build: Build,
    full: Run,
    tokens: Sequence[int],
    kept: Sequence[NDArray[np.int64]],
    far: int,
    largest: float,
) -> Verified:
    prompt = sample.sizes.prompt
    return Verified(
        transformers=version("transformers"),
        target=build.manifest.target,
        layers=list(sample.decoder.depth),
        miniature=False,
        tokens=prompt,
        chunks=full.chunks,
        decode_steps=len(tokens) - prompt,
        kept_positions=sum(int((positions >= 0).sum()) for positions in kept),
        far_position=far,
        largest_difference=largest,
    )


def _far_position(build: Build, resolved: ResolvedBuild, prompt: int) -> int:
    """The last one of the longest prompt, where the prompt leaves no cache slot empty."""
    held = all(layer.size <= prompt for layer in build.manifest.geometry.layers)
    return max(prompt, resolved.geometry.L_max - 1) if held else prompt


def _decoded(
    reference: Reference, build: Build, run: Run, tokens: Sequence[int], position: int
) -> float:
    """The difference of the logits of a token that was decoded after a compressed prompt."""
    prompt, layers = len(tokens) - 1, build.manifest.geometry.layers
    shown = [
        visible_after(layer, kept, prompt, position)
        for layer, kept in zip(layers, run.kept, strict=True)
    ]
    expected: Answer = reference.answer(tokens, position, lambda place: shown[place])
    return difference({prompt: run.logits[position]}, expected.logits)
