"""Answers through OpenAI's own client, whose types check the objects."""

import codecs
from typing import Any

import openai
import pytest

from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.requests.request import Completion, SamplingParams
from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served

PROMPT = "Once upon a time"
CHAT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é?"}]
RENDERED = "</s>[system]Be brief.[user]é?[assistant]"
OPTIONS: dict[str, Any] = {"model": "model", "temperature": 0, "max_tokens": 9}


def alone(served: Served, prompt: str | list[int] = PROMPT, **params: Any) -> Completion:
    (completion,) = served.alone.generate([prompt], SamplingParams(**{"max_tokens": 9} | params))
    return completion


def usage_of(answer: Any) -> tuple[int, int, int]:
    used = answer.usage
    return used.prompt_tokens, used.completion_tokens, used.total_tokens


def test_completion_has_openais_form_and_the_runtimes_text(
    served: Served, client: openai.OpenAI
) -> None:
    done = client.completions.create(prompt=PROMPT, **OPTIONS)
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason, choice.index) == (alone(served).text, "length", 0)
    assert (done.object, done.model, usage_of(done)) == ("text_completion", "model", (16, 9, 25))
    assert done.id.startswith("cmpl-") and choice.logprobs is None


def test_chat_has_openais_form_and_the_runtimes_text(served: Served, client: openai.OpenAI) -> None:
    """The template writes a special token, and the tokenizer adds none."""
    done = client.chat.completions.create(messages=CHAT, **OPTIONS)
    (choice,) = done.choices
    expected = alone(served, RENDERED)
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert (done.object, choice.finish_reason) == ("chat.completion", "length")
    assert usage_of(done) == (len(expected.prompt_token_ids), 9, len(expected.prompt_token_ids) + 9)
    (request,) = served.llm.requests
    assert list(request.prompt_token_ids) == byte_level().encode(RENDERED).ids


def test_streamed_completion_joins_to_the_runtimes_text(
    served: Served, client: openai.OpenAI
) -> None:
    chunks = list(client.completions.create(prompt=PROMPT, stream=True, **OPTIONS))
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone(served).text
    *earlier, last = [chunk.choices[0].finish_reason for chunk in chunks]
    assert last == "length" and not any(earlier)  # a slow client gets several tokens in one chunk
    assert {(chunk.id, chunk.object, chunk.usage) for chunk in chunks} == {
        (chunks[0].id, "text_completion", None)
    }


def test_streamed_chat_joins_to_the_runtimes_text(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(
        messages=CHAT, stream=True, stream_options=options, **OPTIONS
    )
    first, *middle, end, last = list(stream)
    assert first.choices[0].delta.model_dump(exclude_unset=True) == {
        "role": "assistant",
        "content": "",
    }
    text = "".join(chunk.choices[0].delta.content or "" for chunk in middle)
    assert text == alone(served, RENDERED).text
    assert end.choices[0].delta.model_dump(exclude_unset=True) == {}
    assert end.choices[0].finish_reason == "length"
    assert last.choices == [] and usage_of(last)[1] == 9
    assert all(chunk.usage is None for chunk in (first, *middle, end))
    assert {chunk.object for chunk in middle} == {"chat.completion.chunk"}


@pytest.mark.parametrize(
    "prompt",
    [["one", "another"], [1, 2, 3], [[1, 2], [3]]],
    ids=["texts", "token ids", "lists of token ids"],
)
def test_completion_of_several_prompts_has_n_choices_for_each(
    served: Served, client: openai.OpenAI, prompt: Any
) -> None:
    done = client.completions.create(prompt=prompt, n=2, **OPTIONS)
    prompts = [prompt] if isinstance(prompt[0], int) else prompt
    answers = [alone(served, one) for one in prompts]
    assert [choice.text for choice in done.choices] == [
        answer.text for answer in answers for _ in range(2)
    ]
    assert [choice.index for choice in done.choices] == list(range(2 * len(prompts)))
    read = sum(len(answer.prompt_token_ids) for answer in answers)
    assert usage_of(done)[:2] == (read, 18 * len(prompts))


def test_n_answers_of_one_stream_equal_n_requests(served: Served, client: openai.OpenAI) -> None:
    """Each with the seed after the one before. More of them than there are slots."""
    texts = [""] * 5
    options = OPTIONS | {"temperature": 1, "seed": 7}
    for chunk in client.chat.completions.create(messages=CHAT, n=5, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    expected = [alone(served, RENDERED, temperature=1.0, seed=7 + index) for index in range(5)]
    assert texts == [one.text for one in expected]
    assert len(set(texts)) == 5


def test_stop_text_ends_an_answer_before_it(served: Served, client: openai.OpenAI) -> None:
    whole = alone(served, max_tokens=60).text
    stop = whole[20:22]
    for stops in (stop, ["never this text", stop]):
        done = client.completions.create(prompt=PROMPT, stop=stops, **OPTIONS | {"max_tokens": 60})
        assert done.choices[0].text == whole[: whole.index(stop)]
        assert done.choices[0].finish_reason == "stop"


def test_echo_puts_the_prompt_before_the_answer(served: Served, client: openai.OpenAI) -> None:
    expected = alone(served).text
    done = client.completions.create(prompt=PROMPT, echo=True, **OPTIONS)
    assert done.choices[0].text == PROMPT + expected
    ids = byte_level().encode(PROMPT).ids
    stream = client.completions.create(prompt=ids, echo=True, stream=True, **OPTIONS)
    first, *rest = [chunk.choices[0].text for chunk in stream]
    assert (first, "".join(rest)) == (PROMPT, expected)


def test_every_request_option_reaches_the_model(served: Served, client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model="model",
        messages=CHAT,
        max_completion_tokens=3,
        temperature=0.5,
        top_p=0.75,
        seed=1 << 40,
        stop="é",
        logprobs=True,
        top_logprobs=2,
        user="anyone",
        frequency_penalty=0.25,
        presence_penalty=-0.25,
        logit_bias={"5": -100, "6": 2},
        extra_body={
            "top_k": 5,
            "ignore_eos": True,
            "repetition_penalty": 1.1,
            "min_p": 0.05,
            "min_tokens": 2,
            "stop_token_ids": [9],
        },
    )
    (request,) = served.llm.requests
    assert request.params == SamplingParams(
        max_tokens=3,
        temperature=0.5,
        top_p=0.75,
        top_k=5,
        seed=1 << 40,
        stop=("é",),
        logprobs=2,
        ignore_eos=True,
        stop_token_ids=(9,),
        frequency_penalty=0.25,
        presence_penalty=-0.25,
        repetition_penalty=1.1,
        min_p=0.05,
        logit_bias={5: -100.0, 6: 2.0},
        min_tokens=2,
    )


def test_chat_ends_at_the_token_by_which_the_template_closes_an_answer(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a completion does not; nor does a chat whose template closes answers by nothing."""
    closing = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    client.chat.completions.create(messages=CHAT, **OPTIONS)
    chats = ChatPrompts(served.model.tokenizer, ChatTemplate(closing, {}))
    monkeypatch.setattr(served.model, "chat", chats)
    client.chat.completions.create(messages=CHAT, **OPTIONS)
    client.completions.create(prompt=PROMPT, **OPTIONS)
    ends = [one.params.stop_token_ids for one in served.llm.requests if one.params]
    assert ends == [(), (256,), ()]


def test_defaults_of_the_sampling_options_are_openais(
    served: Served, client: openai.OpenAI
) -> None:
    """And a chat may go on to the model's last position."""
    client.completions.create(model="model", prompt=PROMPT)
    stream = client.chat.completions.create(model="model", messages=CHAT, stream=True)
    next(iter(stream))
    stream.close()
    completion, chat = served.llm.requests
    assert completion.params == SamplingParams(max_tokens=16, temperature=1.0)
    assert chat.params is not None
    assert chat.params.max_tokens == 2000 - len(chat.prompt_token_ids) + 1


def test_chat_logprobs_equal_the_runtimes(served: Served, client: openai.OpenAI) -> None:
    expected = alone(served, RENDERED, logprobs=2)
    whole = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, **OPTIONS)
    stream = client.chat.completions.create(
        messages=CHAT, logprobs=True, top_logprobs=2, stream=True, **OPTIONS
    )
    streamed = [
        token
        for chunk in stream
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or ()
    ]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content == streamed
    assert [token.logprob for token in streamed] == [one.logprob for one in expected.logprobs]
    tops = [[other.logprob for other in token.top_logprobs] for token in streamed]
    assert tops == [[logprob for _, logprob in one.top] for one in expected.logprobs]
    tokenizer = byte_level()
    for token, one in zip(streamed, expected.logprobs, strict=True):
        assert token.token == tokenizer.decode([one.token_id], skip_special_tokens=False)
        assert bytes(token.bytes or ()) == _byte_of(tokenizer.id_to_token(one.token_id))


def test_completion_logprobs_and_offsets_equal_the_runtimes(
    served: Served, client: openai.OpenAI
) -> None:
    expected = alone(served, logprobs=1)
    whole = client.completions.create(prompt=PROMPT, logprobs=1, **OPTIONS).choices[0].logprobs
    assert whole is not None and whole.tokens and whole.text_offset and whole.top_logprobs
    assert whole.token_logprobs == [one.logprob for one in expected.logprobs]
    names = [byte_level().id_to_token(one.token_id) for one in expected.logprobs]
    texts = [b"".join(map(_byte_of, names[:index])) for index in range(9)]
    assert whole.text_offset == [len(_whole_characters(text)) for text in texts]
    assert [min(top.values()) for top in whole.top_logprobs] == whole.token_logprobs
    stream = client.completions.create(prompt=PROMPT, logprobs=1, stream=True, **OPTIONS)
    parts = [chunk.choices[0].logprobs for chunk in stream]
    offsets = [offset for part in parts if part for offset in part.text_offset or ()]
    assert offsets == whole.text_offset


def _byte_of(letter: str) -> bytes:
    """The byte that a letter of GPT-2's alphabet stands for, or a special token's text."""
    return _ALPHABET.get(letter, letter.encode())


def _alphabet() -> dict[str, bytes]:
    """As GPT-2's encoder makes it."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    pairs = [(byte, byte) for byte in own]
    pairs += [(byte, 256 + index) for index, byte in enumerate(others)]
    return {chr(letter): bytes([byte]) for byte, letter in pairs}


_ALPHABET = _alphabet()


def _whole_characters(data: bytes) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def test_models_lists_the_served_model(served: Served, client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object) == ("model", "model")
    assert client.models.retrieve("model") == model


def test_an_answer_can_be_sent_back_in_the_next_chat(served: Served, client: openai.OpenAI) -> None:
    """The answer is sent back with all its fields, the empty ones too, and content in parts."""
    message = client.chat.completions.create(messages=CHAT, **OPTIONS).choices[0].message
    parts: Any = [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]
    back: Any = message.model_dump()
    client.chat.completions.create(
        messages=[*CHAT, back, {"role": "user", "content": parts}], **OPTIONS
    )
    text = f"{RENDERED}{message.content}[user]And\nnow?[assistant]"
    assert list(served.llm.requests[-1].prompt_token_ids) == byte_level().encode(text).ids


def test_a_developer_becomes_a_system_where_the_template_knows_no_developer(
    served: Served, client: openai.OpenAI
) -> None:
    client.chat.completions.create(messages=[{"role": "developer", "content": "Go."}], **OPTIONS)
    expected = byte_level().encode("</s>[system]Go.[assistant]").ids
    assert list(served.llm.requests[0].prompt_token_ids) == expected


def test_chat_template_kwargs_reach_the_template(served: Served, client: openai.OpenAI) -> None:
    body: Any = {"chat_template_kwargs": {"thinks": True}}
    client.chat.completions.create(messages=CHAT, extra_body=body, **OPTIONS)
    expected = byte_level().encode(f"{RENDERED}<think>").ids
    assert list(served.llm.requests[0].prompt_token_ids) == expected
