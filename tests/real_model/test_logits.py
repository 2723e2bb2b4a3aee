"""Graphs of a real language model agree with transformers on both engines of a CPU, from a token to
8,000, and so do 200 greedy tokens."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch

from snapexport import LLM, SamplingParams
from snapexport.builder import build as make_build
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.oracle.raw import Array

TOLERANCE = 1e-3
STEPS = 4
SLOW = pytest.mark.slow

Expected = Callable[[int], Array]


@pytest.fixture(scope="module")
def text(tokenizer: Any) -> list[int]:
    """The beginning of Python's manual."""
    ids: list[int] = tokenizer("".join(topics.values())[:40_000])["input_ids"]
    return ids


@pytest.fixture(scope="module")
def expected(original: Any, text: list[int]) -> Expected:
    """The logits [1 + STEPS, V] from a prompt's end on, of one pass over all its tokens."""

    @cache
    @torch.no_grad()
    def of(length: int) -> Array:
        states = original.model(torch.tensor([text[: length + STEPS]])).last_hidden_state
        found: Array = original.lm_head(states[0, length - 1 :]).numpy()
        return found

    return of


@pytest.fixture(scope="module", params=["portable", "openvino"])
def full(request: Any, gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Graphs that both engines read, with those of the full cache, in fp32."""
    out = tmp_path_factory.mktemp("engines") / "smollm2.build"
    options: dict[str, Any] = {"kv_budget": 1024, "batch": 1, "target": request.param}
    return make_build(gguf_file, out, L_max=8192, **options, baseline=True, weights="dequantize")


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def executor(request: Any, full: Build) -> Iterator[Executor]:
    opened = open_executor(full, backend=request.param, baseline=True)
    yield opened
    opened.close()


def along(executor: Executor, text: list[int], length: int) -> Array:
    """The logits after a prompt, and after each of its next tokens."""
    rows = [executor.prefill_prompt(0, text[:length]).logits.copy()]
    for place in range(length, length + STEPS):
        step = executor.decode(*np.array([[text[place]], [place], [length]]))
        rows.append(step.logits[0].copy())
    return np.stack(rows)


@pytest.mark.parametrize(
    "length", [1, 8, 129, 1000, pytest.param(4000, marks=SLOW), pytest.param(8000, marks=SLOW)]
)
def test_logits_of_the_full_cache_are_those_of_transformers(
    executor: Executor, text: list[int], expected: Expected, length: int
) -> None:
    got = along(executor, text, length)
    np.testing.assert_allclose(got, expected(length), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [7, 240])
def test_logits_are_those_of_transformers_until_all_cache_slots_are_full(
    build: Build, text: list[int], expected: Expected, length: int
) -> None:
    assert length + STEPS <= build.manifest.geometry.layers[0].size
    got = along(open_executor(build), text, length)
    np.testing.assert_allclose(got, expected(length), atol=TOLERANCE, rtol=0)


def test_200_greedy_tokens_are_those_of_transformers(
    build: Build, original: Any, text: list[int]
) -> None:
    prompt = text[:90]
    ids = torch.tensor([prompt])
    wanted = original.generate(ids, max_new_tokens=200, do_sample=False, eos_token_id=None)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    (completion,) = LLM(build.directory, baseline=True).generate([prompt], params)
    assert list(completion.token_ids) == wanted[0, len(prompt) :].tolist()
