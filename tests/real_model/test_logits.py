"""Graphs of a real language model agree with transformers, and so do 200 greedy tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from snapexport import LLM, SamplingParams
from snapexport.contract.build_directory import Build
from tests.oracle.raw import Array, RawBuild, Slots, prefill_and_compress

TEXT = """The lighthouse stood at the end of a long spit of shingle, and in winter the sea came over
the road that led to it. Its keeper had a boat, a bicycle and a radio, and seldom needed more than
one of them in a week. He wrote down the weather every morning and every evening, in the same words
as his father before him, so that the books of sixty years could be read as one. """
TOLERANCE = 1e-3
STEPS = 16


def prompt_of(tokenizer: Any, length: int) -> list[int]:
    ids: list[int] = tokenizer(TEXT * 8)["input_ids"]
    assert len(ids) >= length
    return ids[:length]


@torch.no_grad()
def expected(original: Any, prompt: list[int]) -> tuple[list[int], Array]:
    """The greedy continuation, and the logits [1 + STEPS, V] from the prompt's end on."""
    ids = torch.tensor([prompt])
    whole = original.generate(ids, max_new_tokens=STEPS, do_sample=False, eos_token_id=None)
    logits = original(whole).logits[0, len(prompt) - 1 :]
    return whole[0, len(prompt) :].tolist(), logits.numpy()


def actual(build: RawBuild, prompt: list[int], tokens: list[int]) -> Array:
    logits, request = prefill_and_compress(build, prompt)
    slots = Slots(build, [request])
    return np.stack([logits, *(slots.step([token])[0] for token in tokens)])


@pytest.mark.parametrize(
    ("prefix", "length"),
    [("baseline-", 7), ("baseline-", 128), ("baseline-", 400), ("", 7), ("", 240)],
)
def test_logits_are_those_of_transformers_where_nothing_is_dropped(
    build: Build, original: Any, tokenizer: Any, prefix: str, length: int
) -> None:
    """The baseline's full cache; SnapStream's until all cache slots are full."""
    assert prefix or length + STEPS <= build.manifest.geometry.layers[0].size
    prompt = prompt_of(tokenizer, length)
    tokens, logits = expected(original, prompt)
    got = actual(RawBuild(build.directory, prefix), prompt, tokens)
    np.testing.assert_allclose(got, logits, atol=TOLERANCE, rtol=0)


def test_200_greedy_tokens_are_those_of_transformers(
    build: Build, original: Any, tokenizer: Any
) -> None:
    prompt = prompt_of(tokenizer, 90)
    ids = torch.tensor([prompt])
    wanted = original.generate(ids, max_new_tokens=200, do_sample=False, eos_token_id=None)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    (completion,) = LLM(build.directory, baseline=True).generate([prompt], params)
    assert list(completion.token_ids) == wanted[0, len(prompt) :].tolist()
