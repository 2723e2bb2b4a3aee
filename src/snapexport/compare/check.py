"""Compares the graphs of a small decoder with transformers' model of it.

First the full cache, then the positions that the vote keeps and a step on the compressed cache.
Finds the first layer that differs.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from snapexport.compare.difference import Logits, is_same, require_finite, require_same, share
from snapexport.compare.loop import Loop, Run
from snapexport.compare.model import small_model
from snapexport.compare.reference import Answer, Reference
from snapexport.compare.sample import Sample
from snapexport.compare.votes import require_same_vote, visible_after
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import WEIGHTS, Verified
from snapexport.contract.pieces import pieces
from snapexport.errors import needs_extra
from snapexport.exporter import trace
from snapexport.exporter.trace import link, with_batch
from snapexport.exporter.trace.link import Traced
from snapexport.exporter.weights.place import place
from snapexport.runtime.engine.open_executor import open_executor

with needs_extra("cpu"):
    import onnxruntime

AROUND = "the embedding, the last norm or the head"
INSEPARABLE = "one of its layers, of which none can be left out"

_DRAWS = 40
"""Most tokens that are drawn again."""

WriteSample = Callable[[Sample, Path], Build]
"""Builds a sample for ONNX Runtime in an empty directory, with full-cache graphs."""


def check(sample: Sample, write: WriteSample, L_max: int, directory: Path) -> Verified:
    """Compare everything. Raises UserError if it differs.

    L_max: of the build that is to be made. directory: an empty one, for graphs.
    """
    reference, prompt = _reference(sample), sample.sizes.prompt
    tokens, answer = _clear_tokens(reference, sample)
    require_finite(answer.logits)
    build = _write(sample, write, directory / "sample")
    full = _with_full_cache(build, tokens, prompt)
    prefill = share({p: one for p, one in full.logits.items() if p < prompt}, answer.logits)
    require_same(prefill, lambda: _first_wrong(sample, write, tokens, directory))
    decode = share({p: one for p, one in full.logits.items() if p >= prompt}, answer.logits)
    require_same(decode, lambda: "decode with the full cache")
    found = Verified(
        transformers=version("transformers"),
        target=build.manifest.target,
        layers=list(sample.decoder.depth),
        miniature=False,
        tokens=prompt,
        chunks=full.chunks,
        decode_steps=len(tokens) - prompt,
        kept_positions=0,
        far_position=prompt,
        largest_difference=max(prefill, decode, _in_blocks(build, tokens, answer)),
    )
    if not _has_a_ring_for_each_layer(build):
        return found
    return _with_compressed_cache(sample, build, reference, tokens, answer, L_max, found)


def _with_compressed_cache(
    sample: Sample,
    build: Build,
    reference: Reference,
    tokens: Sequence[int],
    answer: Answer,
    L_max: int,
    found: Verified,
) -> Verified:
    """Compare the votes, and a token that is decoded after the compressed prompt.

    It is the last one of the longest prompt, where the prompt leaves no cache slot empty.
    """
    geometry, prompt = build.manifest.geometry, sample.sizes.prompt
    is_full = all(layer.size <= prompt for layer in geometry.layers)
    far = max(prompt, L_max - 1) if is_full else prompt
    with Loop(build) as loop:
        run = loop.run(tokens[: prompt + 1], prompt, last_position=far)
    places = zip(sample.decoder.depth, sample.decoder.layers, strict=True)
    depth = [index for index, layer in places if layer.cache_of != -1]
    require_same_vote(run.kept, answer.attended, geometry, prompt, depth)
    shown = [
        visible_after(layer, kept, prompt, far)
        for layer, kept in zip(geometry.layers, run.kept, strict=True)
    ]
    expected = reference.answer(tokens[: prompt + 1], far, lambda place: shown[place])
    after = share({prompt: run.logits[prompt]}, expected.logits)
    require_same(after, lambda: f"decode of position {far} with the compressed cache")
    return found.model_copy(
        update={
            "kept_positions": sum(int((positions >= 0).sum()) for positions in run.kept),
            "far_position": far,
            "largest_difference": max(found.largest_difference, after),
        }
    )


def _reference(sample: Sample) -> Reference:
    return Reference(small_model(sample.decoder, sample.state_dict(), sample.adapter_tensors()))


def _clear_tokens(reference: Reference, sample: Sample) -> tuple[list[int], Answer]:
    """Random tokens whose experts rounding does not change, and the reference's answer."""
    sizes, rng = sample.sizes, np.random.default_rng(1)
    vocabulary = sample.decoder.config.vocab_size
    tokens = rng.integers(0, vocabulary, sizes.prompt + sizes.steps).tolist()
    answer = reference.answer(tokens)
    for _ in range(_DRAWS if sample.decoder.experts else 0):
        unclear = reference.unclear(tokens)
        if unclear is None:
            break
        tokens[unclear] = int(rng.integers(0, vocabulary))
        answer = reference.answer(tokens)
    return tokens, answer


def _write(sample: Sample, write: WriteSample, directory: Path) -> Build:
    directory.mkdir()
    return write(sample, directory)


def _with_full_cache(build: Build, tokens: Sequence[int], prompt: int) -> Run:
    with Loop(build, baseline=True) as loop:
        return loop.run(tokens, prompt)


def _in_blocks(build: Build, tokens: Sequence[int], answer: Answer) -> float:
    """The difference of a prompt in blocks, of which nothing is dropped; 0 without such graphs.

    The runtime takes the blocks. What votes on a block is the text that follows it, and its logits
    are those after that text.
    """
    manifest, logits = build.manifest, dict[int, Logits]()
    if not manifest.extends_rows:
        return 0.0
    geometry = manifest.geometry
    caches = zip(manifest.model.cached.values(), geometry.layers, strict=True)
    sizes = [shape.size for layer, shape in caches if not layer.ring(geometry.L_max)]
    count = min([len(tokens), *sizes])
    with closing(open_executor(build, backend="onnxruntime", prefill="blocks")) as executor:
        prefill = executor.limits.prefill
        for piece in pieces(count, 0, prefill, onto_row=True):
            end = count if piece.is_last else piece.end + prefill.voters
            logits[end - 1] = executor.take(0, tokens[:end], piece).logits.copy()
    found = share(logits, answer.logits)
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


def _first_wrong(sample: Sample, write: WriteSample, tokens: Sequence[int], directory: Path) -> str:
    """In words, what differs first of a sample that differs. directory: for graphs."""
    if sample.decoder.layers_read_their_own:
        return INSEPARABLE
    depth, layers = sample.decoder.depth, sample.decoder.layers
    least = next(place for place, layer in enumerate(layers) if layer.cache_of != -1)
    right, wrong = least, len(depth)  # graphs without a cache aren't built
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if _is_right(sample.first(middle), write, tokens, directory / f"first-{middle}"):
            right = middle
        else:
            wrong = middle
    if wrong == 1 and not _is_right_around(sample.first(0), tokens, directory / "bare"):
        return AROUND
    if wrong == least + 1 > 1:
        return f"one of the layers {depth[0]} to {depth[least]}"
    return f"layer {depth[wrong - 1]}"


def _is_right(sample: Sample, write: WriteSample, tokens: Sequence[int], directory: Path) -> bool:
    """Whether the graphs of a sample prefill as transformers does."""
    build, expected = _write(sample, write, directory), _reference(sample).answer(tokens).logits
    return is_same(share(_with_full_cache(build, tokens, len(tokens)).logits, expected))


def _is_right_around(bare: Sample, tokens: Sequence[int], directory: Path) -> bool:
    """Whether a graph without layers gives transformers' logits."""
    expected = _reference(bare).answer(tokens).logits
    try:
        logits = _without_layers(bare, tokens, directory)
    except Exception:  # a model that can't be without layers: one of them is named then
        return True
    return is_same(share(dict(enumerate(logits)), expected))


def _without_layers(bare: Sample, tokens: Sequence[int], directory: Path) -> NDArray[np.float32]:
    """Logits [T,V] of a graph of the embedding, the last norm and the head."""
    directory.mkdir()
    decoder = replace(bare.decoder, layers_read_their_own=True)  # no layer represents others
    traced = Traced.of(trace.trace_decode(decoder, torch.float32), decoder)
    placed = place(
        bare.checkpoint, traced.sources.values(), "fp32", directory / WEIGHTS, lambda _: None
    )
    model = with_batch(traced.model, len(tokens))
    link.link(model, traced.sources, placed.tensors)
    path = directory / "bare.onnx"
    ir.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {
        names.INPUT_IDS: np.array(tokens, np.int64)[:, None],
        names.POSITION_IDS: np.arange(len(tokens))[:, None],
    }
    wanted = {one.name for one in session.get_inputs()}
    (logits,) = session.run(None, {n: one for n, one in given.items() if n in wanted})
    found: NDArray[np.float32] = logits
    return found
