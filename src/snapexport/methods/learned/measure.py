"""Learns on texts what a position is worth, from the hidden state of its token.

The score of a position is the logarithm of the largest attention that the repeated text gives it
(KVzip, arXiv:2505.23416). Ridge regression maps what keys and values are projected from to the
scores of a layer's KV heads: KVzap's linear form (arXiv:2601.07891). Only sums over positions are
held, [E+1,E+1] a layer, whatever the number of texts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_graphsurgeon as gs
from polygraphy.logger import G_LOGGER

from snapexport.builder.graph_files import Traces
from snapexport.compare.loaders import Array, on_onnxruntime
from snapexport.compare.loop import Loop
from snapexport.compare.method import MethodMeasure, Source, Texts
from snapexport.contract.build_directory import Build
from snapexport.graphs.compression import caching_layers
from snapexport.graphs.passes.latents import Latents
from snapexport.methods.learned.scores import LearnedScores, Linear
from snapexport.methods.learned.surgery import projection_input
from snapexport.methods.repeat.measure import attention_of, repeating, require_repeats

PENALTY = 10.0
LEAST = 1e-6
"""Smaller attention counts as this much."""


class Ridge:
    """Sums over positions of one layer, from which its network follows."""

    def __init__(self, width: int, kv_heads: int) -> None:
        self._inner = np.eye(width + 1) * PENALTY
        self._outer = np.zeros((width + 1, kv_heads))

    def add(self, states: Array, attention: Array) -> None:
        """states: [n,E]. attention: [n,Hkv]."""
        rows = np.concatenate([states, np.ones((len(states), 1))], 1, dtype=np.float64)
        self._inner += rows.T @ rows
        self._outer += rows.T @ log_of(attention)

    def solve(self) -> Linear:
        """The network so far."""
        found = np.linalg.solve(self._inner, self._outer)
        return Linear(found[:-1].T.astype(np.float32), found[-1].astype(np.float32))


def log_of(attention: Array) -> Array:
    """Scores of attention, as they are learned."""
    return np.log(np.maximum(attention.astype(np.float64), LEAST))


def learn(texts: Texts) -> tuple[LearnedScores, float | None]:
    """The networks, and how well those of the other texts foretell the last one's scores.

    That is the mean correlation over KV heads; None for a single text.
    """
    sums: dict[int, Ridge] = {}
    found: list[float] = []
    shapes, last = texts.build.manifest.geometry.widest, len(texts.prompts) - 1
    with repeating(texts) as made, _open_states(made, texts.build) as states_of:
        for number, attention in enumerate(attention_of(made, texts)):
            states = states_of(texts.prompts[number])
            for layer, scores in attention.items():
                taken = slice(shapes[layer].L_sink, None)
                rows, wanted = states[layer][taken], scores.T[taken]
                one = sums.setdefault(layer, Ridge(rows.shape[1], wanted.shape[1]))
                if 0 < number == last:
                    found += _correlations(one.solve(), rows, log_of(wanted))
                one.add(rows, wanted)
    layers = {layer: (one.solve(),) for layer, one in sorted(sums.items())}
    return LearnedScores(layers), float(np.mean(found)) if found else None


def _correlations(network: Linear, states: Array, wanted: Array) -> Iterator[float]:
    """Correlations of each KV head's scores [n] with what was measured."""
    foretold = states @ network.weight.T + network.bias
    for mine, real in zip(foretold.T, wanted.T, strict=True):
        if mine.std() and real.std():
            yield float(np.corrcoef(mine, real)[0, 1])


@contextmanager
def _open_states(
    made: Build, traced: Build
) -> Iterator[Callable[[Sequence[int]], dict[int, Array]]]:
    """Yield a function of a prompt: its states before projections, float32 [n,E] by layer.

    traced: the build that `made` was derived from.
    """
    graph = gs.import_onnx(Traces.of(traced).models["prefill"])
    Latents(absorb=True).apply(graph)
    layers = caching_layers(graph, made.manifest.geometry)
    shown = {layer: projection_input(marker).name for layer, marker in layers}
    loader = on_onnxruntime(made, shown={"prefill": [*shown.values()]})

    def states_of(prompt: Sequence[int]) -> dict[int, Array]:
        found = dict[int, Array]()
        for end, out in loop.chunks(np.asarray(prompt)):
            for layer, name in shown.items():
                rows = np.asarray(out[name], np.float32).reshape(-1, out[name].shape[-1])
                states = found.setdefault(layer, np.zeros((len(prompt), rows.shape[1]), np.float32))
                start = max(0, end - len(rows))  # the last chunk of a long prompt overlaps others
                states[start:end] = rows[: end - start]
        return found

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL), Loop(made, loader=loader) as loop:
        yield states_of


class LearnedMeasure(MethodMeasure):
    """Learns scores, for `build --scores`."""

    def require(self, build: Build) -> None:
        """Raise UserError for a build that shows no scores."""
        require_repeats(build)

    def calibrate(self, texts: Texts, source: Source) -> tuple[bytes, Source, str]:
        learned, correlation = learn(texts)
        if correlation is None:
            return learned.content(), {}, "scores of one passage, foretold for none"
        found = {"correlation": round(correlation, 3)}
        words = f"scores foretold the last passage's with a correlation of {correlation:.2f}"
        return learned.content(), found, words


MEASURE = LearnedMeasure()
