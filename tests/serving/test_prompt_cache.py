"""`snapexport serve --prompt-cache`: what clients are told of kept tokens, over a restart."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.serving.process import SECONDS, Serving, read_metrics, serve

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEXT = " ".join(["The river was quiet."] * 40)
GREEDY: dict[str, Any] = {"model": "vault", "temperature": 0}
CHUNK = 64


def complete(client: openai.OpenAI, prompt: str, **extra: Any) -> tuple[str, int]:
    """The answer, and how many of the prompt's tokens were kept."""
    answer = client.completions.create(
        prompt=prompt, max_tokens=8, extra_body={"ignore_eos": True, **extra}, **GREEDY
    )
    assert answer.usage and answer.usage.prompt_tokens_details
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens or 0


def post(serving: Serving, path: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{serving.url}{path}",
        json.dumps({**GREEDY, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


@pytest.mark.slow
def test_every_api_counts_kept_tokens_also_after_a_kill(tmp_path: Path) -> None:
    options: dict[str, Any] = {"L_max": 512, "kv_budget": 64, "batch": 2, "prefill_chunk": CHUNK}
    made = build(CHECKPOINT, tmp_path / "b", **options).directory
    (made / "chat_template.jinja").write_text(TEMPLATE)
    flags = ("--prompt-cache", str(tmp_path / "kept"), "--prompt-cache-size", "64MiB")
    with serve(made, tmp_path, *flags) as serving:
        client = serving.client()
        first = complete(client, TEXT)
        again = complete(client, TEXT)
        assert first[1] == 0 and again[1] >= 2 * CHUNK and again[0] == first[0]
        assert complete(client, TEXT, cache_salt="alice") == first
        assert complete(client, TEXT, cache_salt="alice") == again
        metrics = read_metrics(serving.addresses["metrics"])
        assert metrics["prompt_cache_hits_total"] == 2
        assert metrics["prompt_cache_tokens_total"] == 2 * again[1]
        serving.process.kill()
    with serve(made, tmp_path, *flags) as serving:
        client = serving.client()
        assert complete(client, TEXT) == again
        user = {"role": "user", "content": TEXT}
        cached = []
        for _ in range(2):
            chat = client.chat.completions.create(messages=[user], max_tokens=4, **GREEDY)  # type: ignore[list-item]
            assert chat.usage and chat.usage.prompt_tokens_details
            cached.append(chat.usage.prompt_tokens_details.cached_tokens)
        assert cached[0] == 0 and (cached[1] or 0) >= 2 * CHUNK
        block = {"type": "text", "text": TEXT, "cache_control": {"type": "ephemeral"}}
        message = post(
            serving,
            "/v1/messages",
            messages=[{"role": "user", "content": [block]}],
            max_tokens=4,
        )
        assert message["usage"]["cache_read_input_tokens"] == cached[1]
        response = post(serving, "/v1/responses", input=TEXT, max_output_tokens=4)
        assert response["usage"]["input_tokens_details"]["cached_tokens"] == cached[1]
        for path, named in (("/v1/messages", "max_tokens"), ("/v1/responses", "max_output_tokens")):
            given = {"messages": [user]} if named == "max_tokens" else {"input": TEXT}
            body = post(serving, path, cache_salt="bob-" + named, **given, **{named: 4})
            details = body["usage"]
            none = details.get("cache_read_input_tokens", 0)
            assert none + details.get("input_tokens_details", {}).get("cached_tokens", 0) == 0
        assert serving.end()[0] == 0
