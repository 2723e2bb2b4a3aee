"""Repeats a prompt by the graphs themselves, for comparisons that don't trust the runtime."""

import numpy as np

from snapexport.compare.loaders import Array, Feed
from snapexport.compare.method import MethodMeasure, Prefilled
from snapexport.contract import names
from snapexport.methods.repeat.spec import GRAPH, repeated_chunk, repeated_starts


class RepeatMeasure(MethodMeasure):
    """Votes of the repeated prompt as vote.onnx adds them up; zeros if all of it is kept."""

    def votes(self, graphs: Prefilled, out: Feed, prompt: Array) -> Feed:
        manifest, length = graphs.manifest, len(prompt)
        votes = {
            names.past_of(spec.name): np.zeros(spec.shape, np.float32)
            for spec in manifest.graphs[GRAPH].outputs
        }
        chunk, is_whole = manifest.prefill_chunk, length <= manifest.geometry.held_whole
        for start in () if is_whole else repeated_starts(length, chunk):
            tokens = np.array(repeated_chunk(prompt.tolist(), chunk, start))
            out = graphs.run_chunk(out, tokens, length)
            given = votes | {names.PROMPT_LENGTH: np.array([length])}
            found = graphs.run_on(GRAPH, out, given)
            votes = {names.past_of(name): value for name, value in found.items()}
        return votes


MEASURE = RepeatMeasure()
