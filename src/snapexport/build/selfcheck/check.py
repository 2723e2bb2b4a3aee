"""Compares a sample's graphs with transformers' model of it."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from snapexport.build.resolved import ResolvedBuild
from snapexport.build.selfcheck import graphs
from snapexport.build.selfcheck.difference import difference, require_finite, require_same
from snapexport.build.selfcheck.graphs import Run
from snapexport.build.selfcheck.locate import first_wrong
from snapexport.build.selfcheck.reference import Answer, Reference
from snapexport.build.selfcheck.sample import Sample
from snapexport.build.selfcheck.tokens import clear_tokens
from snapexport.build.selfcheck.votes import require_same_vote, visible_after
from snapexport.contract.build_directory import Build
from snapexport.contract.verified import Verified


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
    far = _far_position(build, resolved, prompt)
    compressed = graphs.of_compressed_cache(build, tokens[: prompt + 1], far)
    depth, geometry = sample.decoder.depth, build.manifest.geometry
    require_same_vote(compressed.kept, answer.attended, geometry, prompt, depth)
    after = _decoded(reference, build, compressed, tokens[: prompt + 1], far)
    require_same(after, lambda: f"decode of position {far} with the compressed cache")
    return Verified(
        transformers=version("transformers"),
        target=build.manifest.target,
        layers=list(depth),
        miniature=False,
        tokens=prompt,
        chunks=full.chunks,
        decode_steps=len(tokens) - prompt,
        kept_positions=sum(int((kept >= 0).sum()) for kept in compressed.kept),
        far_position=far,
        largest_difference=max(prefill, decode, after),
    )


def _far_position(build: Build, resolved: ResolvedBuild, prompt: int) -> int:
    """The last one of the longest prompt, where no ring has slots that a prompt leaves empty."""
    held = all(
        layer.L_sink + layer.ring_slots <= prompt for layer in build.manifest.geometry.layers
    )
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
