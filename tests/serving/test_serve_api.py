"""`snapexport serve` by OpenAI's client: its answers are those of the build alone."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import openai
import pytest

from snapexport.runtime.requests.request import Completion, SamplingParams
from snapexport.vault import make_prompt
from tests.serving.process import SECONDS, Serving, read_metrics, serve

if TYPE_CHECKING:
    from snapexport import LLM

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The old?"}]
RENDERED = "<s>system: Be brief.\nuser: The old?\nassistant:"
OPTIONS: dict[str, Any] = {"model": "vault", "temperature": 0, "max_tokens": 12}
SLOTS, MAX_PENDING = 8, 4


@pytest.fixture(scope="module")
def chatting(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build, with a chat template."""
    directory = tmp_path_factory.mktemp("chatting")
    shutil.copytree(build, directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def serving(chatting: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    scratch = tmp_path_factory.mktemp("scratch")
    with serve(chatting, scratch, "--max-pending", str(MAX_PENDING)) as running:
        yield running


@pytest.fixture(scope="module")
def client(serving: Serving) -> openai.OpenAI:
    return serving.client()


def alone(llm: "LLM", prompt: str | list[int], **params: Any) -> Completion:
    (completion,) = llm.generate([prompt], SamplingParams(**{"max_tokens": 12} | params))
    return completion


def test_concurrent_completions_equal_the_llms(client: openai.OpenAI, llm: "LLM") -> None:
    """At once, with long prompts that are compressed: none takes anything of its neighbours'."""
    prompts = [make_prompt(seed, 300 + 100 * (seed % 8)) for seed in range(SLOTS + MAX_PENDING)]
    expected = [alone(llm, prompt.text).text for prompt in prompts]

    def ask(text: str) -> str:
        stream = client.completions.create(prompt=text, stream=True, **OPTIONS)
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, [prompt.text for prompt in prompts])) == expected
    assert prompts[0].answer.strip() in expected[0]


def test_chat_equals_its_rendered_prompt(client: openai.OpenAI, llm: "LLM") -> None:
    assert llm.tokenizer is not None
    expected = alone(llm, llm.tokenizer.encode(RENDERED, add_special_tokens=False).ids)
    done = client.chat.completions.create(messages=CHAT, **OPTIONS)
    assert done.choices[0].message.content == expected.text
    assert done.usage is not None
    assert done.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert done.usage.completion_tokens == len(expected.token_ids)
    assert done.choices[0].finish_reason == expected.finish_reason
    chunks = list(
        client.chat.completions.create(
            messages=CHAT, stream=True, stream_options={"include_usage": True}, **OPTIONS
        )
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == expected.text
    assert chunks[-1].usage == done.usage


def test_logprobs_equal_the_llms(client: openai.OpenAI, llm: "LLM") -> None:
    expected = alone(llm, "The old", logprobs=3).logprobs
    done = client.completions.create(prompt="The old", logprobs=3, **OPTIONS).choices[0]
    assert done.logprobs is not None
    assert done.logprobs.token_logprobs == pytest.approx(
        [one.logprob for one in expected], abs=1e-3
    )
    assert done.logprobs.tokens is not None
    assert done.text == "".join(done.logprobs.tokens).removesuffix("</s>")
    chat = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, **OPTIONS)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert all(token.logprob == token.top_logprobs[0].logprob for token in logprobs.content)


def test_clients_that_leave_free_a_full_queue(serving: Serving, client: openai.OpenAI) -> None:
    """All slots taken, the queue full: one is refused, and those who wait get the freed slots."""
    options = OPTIONS | {"max_tokens": 10_000, "extra_body": {"ignore_eos": True}}
    many = [client.completions.create(prompt="a", n=4, stream=True, **options) for _ in "ab"]
    with ThreadPoolExecutor(1) as pool:
        create = serving.client().completions.create
        waiting = pool.submit(create, prompt="a", n=MAX_PENDING, **OPTIONS)
        until(serving, requests_running=SLOTS, requests_waiting=MAX_PENDING)
        with pytest.raises(openai.InternalServerError, match="try again later") as refused:
            client.completions.create(prompt="a", **OPTIONS)
        assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]
        with urlopen(f"{serving.url}/health", timeout=SECONDS) as answer:
            assert json.load(answer) == {"status": "ok"}
        for stream in many:
            stream.close()
        assert len(waiting.result(SECONDS).choices) == MAX_PENDING
    until(serving, requests_running=0, requests_waiting=0, slots_used=0)


def until(serving: Serving, **expected: float) -> None:
    """Wait for the model's metrics to have these values, as /metrics passes them on."""
    end = time.monotonic() + SECONDS
    while True:
        metrics = read_metrics(f"{serving.url}/metrics")
        found = {name: metrics[name] for name in expected}
        if found == expected:
            return
        assert time.monotonic() < end, f"{found} and not {expected}"
