"""Builds a sample's graphs by the usual stages, and runs them by the runtime, in fp32.

Options that any model's graphs share leave out: this is about the model and the vote.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Silent
from snapexport.builder.resolved import ResolvedBuild
from snapexport.builder.selfcheck.sample import Sample
from snapexport.builder.selfcheck.sizes import Sizes
from snapexport.builder.stages import write_into
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.pieces import pieces, pieces_of
from snapexport.contract.slots import LayerGeometry, Slots
from snapexport.contract.targets import Target, capabilities
from snapexport.contract.vote import Vote
from snapexport.exporter.model import model_facts
from snapexport.methods.extend.spec import ExtendOptions
from snapexport.runtime.engine.batch_executor import BatchExecutor
from snapexport.runtime.engine.graph_set import PrefillForm
from snapexport.runtime.engine.open_executor import open_executor

Logits = NDArray[np.float32]

_SINKS, _LONGEST_POOL = 4, 7


def target_of(target: Target) -> Target:
    """The target whose graphs ONNX Runtime runs in the place of these."""
    return "portable" if capabilities(target).runs_on_gpu else target


def build_of(sample: Sample, resolved: ResolvedBuild, directory: Path) -> Build:
    """Build the sample in an empty directory, with a baseline."""
    decoder, sizes = sample.decoder, sample.sizes
    checkpoint = replace(
        resolved.checkpoint, tensors=sample.tensors, generation_config={"eos_token_id": []}
    )
    model = model_facts(decoder, checkpoint)
    options = BuildOptions(
        model=resolved.options.model,
        out=directory,
        L_max=sizes.L_max,
        batch=1,
        decode_batches=(),
        target=target_of(resolved.options.target),
        baseline=True,
        graph=GraphOptions(methods=(resolved.options.graph.of(ExtendOptions),)),
    )
    small = ResolvedBuild(
        options=options,
        stored=checkpoint,
        checkpoint=checkpoint,
        texts={},
        decoder=decoder,
        model=model,
        geometry=_geometry(resolved.geometry, model, sizes),
        prefill_chunk=sizes.chunk,
        prefill_capacities=[],
        short_chunks=[],
    )
    return write_into(directory, small, Silent())


def _geometry(wanted: CacheGeometry, model: ModelFacts, sizes: Sizes) -> CacheGeometry:
    """A small cache of a build's vote: its sinks and its stages, a short window and pool."""
    vote, part = wanted.vote, sizes.L_max // 8
    votes = wanted.votes or wanted.policy == "full"
    sinks = min(_SINKS, max(layer.L_sink for layer in wanted.layers))
    voting = LayerGeometry(sinks, part, part if votes else 0)
    shapes = [layer.ring(sizes.L_max) or voting for layer in model.cached.values()]
    slots = Slots.of(shapes, model.num_hidden_layers, model.cache_of or ())
    small = Vote(
        L_obs=min(vote.L_obs, part),
        pool_kernel=min(vote.pool_kernel, _LONGEST_POOL),
        vote=vote.vote,
        pool=vote.pool,
        softmax=vote.softmax,
        group=vote.group,
    )
    return CacheGeometry("snapstream", sizes.L_max, slots, small)


@contextmanager
def opened(
    build: Build, *, baseline: bool, prefill: PrefillForm = "chunks"
) -> Iterator[BatchExecutor]:
    """The build's graphs, loaded in this block."""
    executor = open_executor(build, backend="onnxruntime", baseline=baseline, prefill=prefill)
    try:
        yield executor
    finally:
        executor.close()


@dataclass(frozen=True)
class Run:
    """logits: float32 [V] after each of some positions."""

    logits: dict[int, Logits]
    chunks: int
    kept: Sequence[NDArray[np.int64]] = ()


def of_full_cache(build: Build, tokens: Sequence[int], prompt: int) -> Run:
    """Prefill the first `prompt` tokens, then decode the others one by one."""
    with opened(build, baseline=True) as executor:
        run = _prefilled(executor, tokens[:prompt])
        for position in range(prompt, len(tokens)):
            run.logits[position] = _decoded(executor, tokens[position], position, prompt)
    return run


def of_compressed_cache(build: Build, tokens: Sequence[int], last_position: int) -> Run:
    """Prefill and compress all tokens but the last, then decode that one at a position."""
    prompt = len(tokens) - 1
    with opened(build, baseline=False) as executor:
        run = _prefilled(executor, tokens[:prompt])
        kept = [positions.copy() for positions in executor.topk_positions() or ()]
        logits = _decoded(executor, tokens[prompt], last_position, prompt)
    return Run(run.logits | {last_position: logits}, run.chunks, kept)


def in_blocks(build: Build, tokens: Sequence[int]) -> dict[int, Logits]:
    """Take the first tokens, of which nothing is dropped, in blocks; logits as in `Run`.

    What votes on a block is the text that follows it: logits are those behind that.
    """
    model, geometry = build.manifest.model, build.manifest.geometry
    caches = zip(model.cached.values(), geometry.layers, strict=True)
    sizes = [shape.size for layer, shape in caches if not layer.ring(geometry.L_max)]
    held, logits = min([len(tokens), *sizes]), {}
    with opened(build, baseline=False, prefill="blocks") as executor:
        prefill = executor.limits.prefill
        for piece in pieces(held, 0, prefill, onto_row=True):
            end = held if piece.is_last else piece.end + prefill.voters
            logits[end - 1] = executor.take(0, tokens[:end], piece).logits.copy()
    return logits


def _prefilled(executor: BatchExecutor, prompt: Sequence[int]) -> Run:
    pieces = pieces_of(len(prompt), executor.limits.prefill)
    logits = {piece.end - 1: executor.take(0, prompt, piece).logits.copy() for piece in pieces}
    return Run(logits, len(pieces))


def _decoded(executor: BatchExecutor, token: int, position: int, prompt: int) -> Logits:
    given, at, length = (np.array([value], np.int64) for value in (token, position, prompt))
    logits: Logits = executor.decode(given, at, length)[0].logits.copy()
    return logits
