"""The file's own integers answer as transformers does with the values that they stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from snapexport import LLM, SamplingParams
from snapexport.builder import build as make_build
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import open_executor

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROSE = (
    "The harbour was quiet when the first boats came back. Men in wool caps threw the lines "
    "ashore, and the dog that belonged to nobody ran up and down the quay. By noon the whole "
    "catch lay on the stones: herring, a few cod, and one eel that nobody wanted to touch."
)


@pytest.fixture(scope="module")
def kept(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("kept") / "smollm2.build"
    return make_build(gguf_file, out, L_max=512, policy="full", weights="keep")


def test_quickstart_question_is_answered(kept: Build) -> None:
    """Its likeliest first tokens are a near tie, .08 apart in transformers."""
    (answer,) = LLM(kept.directory).chat([QUESTION], SamplingParams(max_tokens=16, temperature=0))
    assert answer.text == "The capital of France is Paris."


@torch.no_grad()
def test_decode_steps_diverge_little_from_transformers(
    kept: Build, original: Any, tokenizer: Any
) -> None:
    """By .0035 nats a token if every product rounds what it reads, else by .0015."""
    text = tokenizer(PROSE)["input_ids"]
    exact = log_softmax(original(torch.tensor([text])).logits[0].numpy(), -1)
    executor = open_executor(kept)
    executor.prefill_prompt(0, text[:1])
    steps = [
        executor.decode(*np.array([[text[at]], [at], [1]])).logits[0].copy()
        for at in range(1, len(text))
    ]
    got = log_softmax(np.stack(steps), -1)
    executor.close()
    assert (np.exp(exact[1:]) * (exact[1:] - got)).sum(-1).mean() < 0.0025
