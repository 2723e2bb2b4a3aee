"""A conversation goes on where it was after the server was started again."""

from pathlib import Path
from typing import Any

import openai
import pytest

from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.serving.process import serve

TEXT = " ".join(["The river was quiet."] * 40)
GREEDY: dict[str, Any] = {"model": "vault", "max_tokens": 8, "temperature": 0}


def ask(client: openai.OpenAI, prompt: str, session: str) -> tuple[str, int]:
    """The answer, and how much of the prompt a parked row held."""
    extra = {"ignore_eos": True, "prompt_cache_key": session}
    answer = client.completions.create(prompt=prompt, extra_body=extra, **GREEDY)
    assert answer.usage
    details = answer.usage.prompt_tokens_details
    return answer.choices[0].text, (details.cached_tokens or 0) if details else 0


@pytest.mark.slow
def test_a_row_is_found_after_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"L_max": 512, "kv_budget": 64, "batch": 2, "prefill_chunk": 128}
    made = build(CHECKPOINT, tmp_path / "b", extend=True, **options).directory
    flags = ("--parked-rows", "2", "--parked-dir", str(tmp_path / "rows"))
    with serve(made, tmp_path, *flags) as serving:
        first, cached = ask(serving.client(), TEXT, "alice")
        assert cached == 0
        assert serving.end()[0] == 0
    with serve(made, tmp_path, *flags) as serving:
        prompt = TEXT + first + " The key"
        assert ask(serving.client(), prompt, "bob")[1] == 0
        assert ask(serving.client(), prompt, "alice")[1] > 100
