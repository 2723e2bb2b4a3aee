"""Compares a build with transformers on whole sequences, and says why outputs may differ.

transformers, the full-cache graphs and the compressed graphs run the same tokens: a prompt, and
transformers' own continuation of it. Polygraphy runs the graphs and gives the verdicts; the
measures that matter for logits are added. An output of a sequence is prefill.logits [1,V] of the
prompt's last token, or decode.logits [N,V] after each token of the continuation. V leaves out the
tokens of media, whose logits a build replaces.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import transformers
from polygraphy.comparator import Comparator, RunResults, SimpleCompareFunc
from polygraphy.logger import G_LOGGER

from snapexport.compare.difference import Distance, Logits, tolerance
from snapexport.compare.loaders import GraphLoader
from snapexport.compare.loop import Loop
from snapexport.compare.model import reference_model
from snapexport.compare.reference import Reference
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.exporter.quiet import quiet

PREFILL_LOGITS = "prefill.logits"
DECODE_LOGITS = "decode.logits"


@dataclass(frozen=True, slots=True)
class Difference:
    """One output of one sequence: a system against a reference.

    lossless: both must be equal, as nothing was dropped that the output depends on, and the weights
    are the same. rounded: nothing was dropped, but one of the two has a cache of fewer bits.
    quantized: nothing was dropped, but the system has rounded weights, or rounds activations to 8
    bits.
    passed: Polygraphy's verdict at the tolerance.
    """

    prompt_length: int
    output: str
    reference: str
    system: str
    lossless: bool
    rounded: bool
    quantized: bool
    passed: bool
    distance: Distance

    @property
    def broken(self) -> bool:
        """Whether outputs differ that must be equal."""
        return self.lossless and not self.passed

    @property
    def verdict(self) -> str:
        """In a word, as users read it."""
        if self.lossless:
            return "DIFFERS" if self.broken else "equal"
        return "quantized" if self.quantized else "rounded" if self.rounded else "compressed"


@dataclass(frozen=True)
class _Sequence:
    """A prompt and its continuation, forced on every system."""

    tokens: list[int]
    prompt_length: int


@dataclass(frozen=True)
class _System:
    """One of the compared systems, and its logits.

    original: whether its weights are the checkpoint's and not the build's. lossless: whether it
    attends to every position of a sequence of any length. rounds_prompt, rounds_cache: whether keys
    and values lose digits when they are written to the cache of the prompt in prefill, or to
    decode's. sparse: of each sequence, whether prefill leaves some of its prompt out. outputs: of
    each sequence, by name.
    """

    name: str
    original: bool = False
    lossless: bool = True
    rounds_prompt: bool = False
    rounds_cache: bool = False
    sparse: list[bool] = field(default_factory=list)
    outputs: list[dict[str, Logits]] = field(default_factory=list)

    def add(self, logits: Logits, never_sampled: Sequence[int], is_sparse: bool = False) -> None:
        """Take the logits [1+N,V] of the next sequence, without the tokens of media."""
        # Polygraphy takes only contiguous arrays.
        rows = np.ascontiguousarray(np.delete(logits, list(never_sampled), axis=-1))
        self.outputs.append({PREFILL_LOGITS: rows[:1], DECODE_LOGITS: rows[1:]})
        self.sparse.append(is_sparse)


def compare_build(
    build: Build,
    checkpoint: str | None,
    prompts: list[list[int]],
    steps: int,
    loaders: Mapping[str, GraphLoader] | None = None,
    adapter: str | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Difference]:
    """Differences of all systems over all prompts, of each system and every earlier one.

    loaders: of the build's graphs, by backend; ONNX Runtime's if none are given. adapter: that the
    build was made with, if there is a checkpoint. advance: called after each run of a system.
    """
    with _quiet():
        systems, sequences = [_System("transformers", original=True)], list[_Sequence]()
        model, decoder = reference_model(build, checkpoint, adapter)
        reference, never_sampled = Reference(model), decoder.never_sampled
        for prompt in prompts:
            continuation, logits = reference.continuation(prompt, steps, never_sampled)
            sequences.append(_Sequence([*prompt, *continuation], len(prompt)))
            systems[0].add(logits, never_sampled)
            advance()
        del model, reference  # its memory is free for the graphs
        gc.collect()
        named = dict[str, GraphLoader | None]({"": None})
        if loaders:
            named = {f" ({name})": one for name, one in loaders.items()}
        for baseline in (True, False) if build.has_baseline else (False,):
            for remark, loader in named.items():
                one = _run(build, baseline, loader, remark, sequences, never_sampled, advance)
                systems.append(one)
        return _differences(build.manifest, systems, sequences)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the libraries."""
    transformers.utils.logging.disable_progress_bar()
    with quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


def _run(
    build: Build,
    baseline: bool,
    loader: GraphLoader | None,
    remark: str,
    sequences: Sequence[_Sequence],
    never_sampled: Sequence[int],
    advance: Callable[[], None],
) -> _System:
    """The build's graphs with the full cache or their own, after all sequences."""
    policy, options = build.manifest.geometry.policy, build.manifest.graph_options
    system = _System(
        name=("full cache" if baseline else policy) + remark,
        lossless=baseline or policy == "full",
        rounds_prompt=not baseline and options.prompt_cache_dtype is not None,
        rounds_cache=not baseline and options.cache_dtype is not None,
    )
    with Loop(build, baseline, loader) as loop:
        for one in sequences:
            logits = loop.logits(one.tokens, one.prompt_length)
            system.add(logits, never_sampled, loop.is_sparse(one.prompt_length))
            advance()
    return system


def _differences(
    manifest: Manifest, systems: Sequence[_System], sequences: Sequence[_Sequence]
) -> list[Difference]:
    """Compare every system with every earlier one, sequence by sequence, output by output."""
    pairs = [(one, other) for other in range(len(systems)) for one in range(other)]
    results = RunResults()
    for system in systems:
        results.add(system.outputs, runner_name=system.name)
    logits = [rows.std() for outputs in systems[0].outputs for rows in outputs.values()]
    bound = tolerance(manifest, float(np.mean(logits)))
    compare = SimpleCompareFunc(atol=bound, rtol=0, check_error_stat="max")
    (accuracy,) = Comparator.compare_accuracy(results, comparisons=pairs, compare_func=compare)
    return [
        Difference(
            prompt_length=one.prompt_length,
            output=output,
            reference=reference.name,
            system=system.name,
            **_why(manifest, reference, system, index, one, output),
            passed=bool(accuracy[reference.name, system.name][index][output]),
            distance=Distance.between(expected, system.outputs[index][output]),
        )
        for reference, system in ((systems[one], systems[other]) for one, other in pairs)
        for index, one in enumerate(sequences)
        for output, expected in reference.outputs[index].items()
    ]


def _why(
    manifest: Manifest,
    reference: _System,
    system: _System,
    index: int,
    sequence: _Sequence,
    output: str,
) -> dict[str, bool]:
    """The reasons for which the two may differ."""
    other_weights = manifest.quantization in ("int8", "int4") or manifest.rounds_activations
    quantized = other_weights and reference.original
    # Two compressed caches may differ too: nearly equal votes can be ranked either way.
    whole = reference.lossless and system.lossless
    whole |= output == PREFILL_LOGITS or _holds_all(manifest, len(sequence.tokens))
    whole &= not (reference.sparse[index] or system.sparse[index])
    rounds = output == DECODE_LOGITS and reference.rounds_cache != system.rounds_cache
    rounds |= reference.rounds_prompt != system.rounds_prompt
    return {
        "lossless": whole and not rounds and not quantized,
        "rounded": whole and rounds and not quantized,
        "quantized": whole and quantized,
    }


def _holds_all(manifest: Manifest, length: int) -> bool:
    """Whether decode's cache holds every position.

    The ring of a layer that slides always holds what the layer attends to.
    """
    places, layers = manifest.geometry.narrowest.items(), manifest.model.layers
    return all(length <= place.size for index, place in places if not layers[index].reach)
