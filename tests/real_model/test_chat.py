"""A chat with a real language model: from Python, and by `snapexport serve` and OpenAI's client."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from snapexport import LLM, SamplingParams
from snapexport.contract.build_directory import Build
from snapexport.runtime.chat.chat_template import load
from snapexport.runtime.chat.template_files import read_config
from snapexport.runtime.chat.template_habits import end_token
from snapexport.runtime.requests.prompts import load_tokenizer
from tests.serving.process import Serving, serve

Messages = list[dict[str, str]]
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
TURNS = [
    {"role": "system", "content": "You are a gardener. Answer in few words."},
    {"role": "user", "content": "I have 3 tulips and 4 roses — how many flowers?"},
    {"role": "assistant", "content": "Seven."},
    {"role": "user", "content": "Which of them have thorns?"},
]
TOKENS = 32


@pytest.fixture(scope="module")
def serving(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    flags = ("--name", "smollm2", "--threads", "2")
    with serve(build.directory, tmp_path_factory.mktemp("scratch"), *flags) as found:
        yield found
        assert found.end()[0] == 0


def wanted(original: Any, tokenizer: Any, messages: Messages) -> str:
    """transformers' own greedy answer, by its own reading of the chat template."""
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        whole = original.generate(ids, max_new_tokens=TOKENS, do_sample=False)
    answer: str = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
    return answer


def ask(serving: Serving, messages: Messages, **more: Any) -> Any:
    return serving.client().chat.completions.create(
        model="smollm2", messages=messages, max_tokens=TOKENS, temperature=0, **more
    )


def test_answer_is_that_of_transformers_streamed_and_not(
    serving: Serving, original: Any, tokenizer: Any
) -> None:
    answer = wanted(original, tokenizer, QUESTION)
    assert "Paris" in answer
    (choice,) = ask(serving, QUESTION).choices
    assert (choice.message.content, choice.finish_reason) == (answer, "stop")
    chunks = [chunk.choices[0] for chunk in ask(serving, QUESTION, stream=True)]
    parts = [chunk.delta.content or "" for chunk in chunks]
    assert "".join(parts) == answer
    assert len([part for part in parts if part]) > 3
    assert chunks[-1].finish_reason == "stop"


def test_earlier_turns_are_in_the_prompt_as_the_template_has_them(
    serving: Serving, original: Any, tokenizer: Any
) -> None:
    (choice,) = ask(serving, TURNS).choices
    assert choice.message.content == wanted(original, tokenizer, TURNS)


def test_conversations_from_python_have_transformers_answers(
    build: Build, original: Any, tokenizer: Any
) -> None:
    answers = LLM(build.directory).chat([QUESTION, TURNS], SamplingParams(max_tokens=TOKENS))
    assert [answer.text for answer in answers] == [
        wanted(original, tokenizer, messages) for messages in (QUESTION, TURNS)
    ]


def test_end_token_of_the_template_is_the_checkpoints(build: Build, tokenizer: Any) -> None:
    """Found by rendering alone: the config names the same one."""
    template = load(build.directory, read_config(build.directory))
    known = load_tokenizer(build.directory)
    assert known is not None
    assert end_token(template, known) == tokenizer.eos_token_id
