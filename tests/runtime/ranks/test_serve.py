"""`snapexport serve` with a build of several ranks."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.runtime.ranks.test_run import ranks_of
from tests.serving.process import serve

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"L_max": 512, "kv_budget": 64, "batch": 4, "prefill_chunk": 128}
PROMPTS = ["The old", "The key of the third vault is", " ".join(["The river was quiet."] * 60)] * 2


def test_clients_of_two_ranks_get_the_text_of_one_process(tmp_path: Path) -> None:
    one, two = (
        build(CHECKPOINT, tmp_path / f"{ranks}.build", tensor_parallel=ranks, **OPTIONS).directory
        for ranks in (1, 2)
    )
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    expected = [answer.text for answer in LLM(one, threads=1).generate(PROMPTS, params)]
    with serve(two, tmp_path) as serving:
        client = serving.client()

        def ask(prompt: str) -> str:
            answer = client.completions.create(
                model="vault",
                prompt=prompt,
                max_tokens=24,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            return answer.choices[0].text

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(ask, PROMPTS)) == expected
        (other,) = ranks_of(serving.process.pid)
        os.kill(other, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError, match=r"rank 1 ended|was closed"):
            ask(PROMPTS[0])
        assert ranks_of(serving.process.pid) == []
        status, errors = serving.ended()
        assert (status, "the model no longer answers" in errors) == (2, True), errors
