"""`quality/sparse_prefill.py`: what is asked after a document, and how answers are summed up."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tools.studies.quality.sparse_prefill import WAYS, Turns, prompt, summary

TOKENS = 4000


def byte_tokenizer() -> Tokenizer:
    """A token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("seed", range(4))
def test_the_answers_to_all_questions_are_in_the_text_before_them(seed: int) -> None:
    tokenizer, rng = byte_tokenizer(), Random(seed)
    lines = [f"{n} " + "la " * rng.randrange(1, 20) + "\n" for n in range(1000)]
    asked = prompt(lines, seed, tokenizer, Turns("<user>", "<model>", "<end>"), TOKENS)
    assert TOKENS - 80 < len(asked.ids) <= TOKENS
    context = tokenizer.decode(asked.ids[: asked.context])
    assert context.startswith("<user>") and "VAR" not in context[-300:]
    answers = [tokenizer.decode(asked.ids[start:end]) for _, start, end in asked.answers]
    assert tokenizer.decode(asked.ids).endswith(answers[-1])
    needle, *keys, variables = answers
    assert all(f" is{answer}." in context for answer in (needle, *keys))
    names = variables.replace(" and ", ", ").strip().split(", ")
    for source, name in pairwise(names):
        assert context.index(f"VAR {source} =") < context.index(f"VAR {name} = VAR {source}\n")


def row(seed: int, way: str, *parts: tuple[float, float]) -> dict[str, Any]:
    found = [{"kind": "keys", "tokens": 4, "nats": nats, "right": right} for nats, right in parts]
    return {"seed": seed, "way": way, "parts": found}


def test_a_way_is_compared_sample_by_sample_where_all_ways_were_measured() -> None:
    rows = [
        row(seed, way, (4.0 + n, 1.0), (8.0 + n, 0.5))
        for seed in (0, 1)
        for n, way in enumerate(WAYS)
    ]
    found = {one["way"]: one for one in summary([*rows, row(2, WAYS[0], (100.0, 0.0))])}
    assert [found[way]["more"] for way in WAYS] == [0, 0.25, 0.5]
    assert all(one["more_se"] == 0 and one["found"] == 0.5 for one in found.values())
    assert all(one["samples"] == 2 and one["answers"] == 4 for one in found.values())
    assert not list(summary(rows[:1]))
