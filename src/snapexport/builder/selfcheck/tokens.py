"""Chooses the tokens that a sample is compared on, and their answer by transformers."""

import numpy as np

from snapexport.builder.selfcheck.reference import Answer, Reference
from snapexport.builder.selfcheck.sample import Sample

_DRAWS = 40
"""Most tokens that are drawn again."""


def clear_tokens(reference: Reference, sample: Sample) -> tuple[list[int], Answer]:
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
