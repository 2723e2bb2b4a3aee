"""Structured outputs over HTTP, by OpenAI's client: the form is kept, neighbours go on."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from snapexport.runtime.chat.parsers.table import OutputFormat
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from tests.serving.openai.conftest import Served
from tests.serving.openai.scripted import use_format

CHAT: Any = [{"role": "user", "content": "Hello"}]
OPTIONS: dict[str, Any] = {"model": "model", "messages": CHAT, "seed": 3}
HOSTILE = {"type": "integer", "multipleOf": 99999999}


@pytest.fixture(autouse=True)
def no_reasoning(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    use_format(monkeypatch, served.model, OutputFormat())


class Person(BaseModel):
    """What a client of agents asks for."""

    name: str = Field(max_length=5)
    kind: Literal["a", "b"]
    ages: list[bool] = Field(max_length=2)


def test_openais_parse_returns_the_model(client: openai.OpenAI) -> None:
    done = client.chat.completions.parse(response_format=Person, **OPTIONS)
    (choice,) = done.choices
    assert isinstance(choice.message.parsed, Person) and choice.finish_reason == "stop"


def test_streams_of_n_answers_have_the_form_each(client: openai.OpenAI) -> None:
    form: Any = {"structured_outputs": {"regex": "[a-f]{3}-[0-9]{20}"}}
    texts = [""] * 4
    for chunk in client.chat.completions.create(n=4, stream=True, extra_body=form, **OPTIONS):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert all(re.fullmatch("[a-f]{3}-[0-9]{20}", text) for text in texts)
    assert len(set(texts)) == 4


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
        ({"guided_regex": "[xy]{4}"}, "[xy]{4}"),
        ({"guided_choice": ["on", "off"]}, "on|off"),
        ({"guided_grammar": 'root ::= "a" [0-9]'}, "a[0-9]"),
        ({"structured_outputs": {"json": {"enum": [1, 2]}}}, "1|2"),
        ({"structured_outputs": {"choice": ["on"]}, "response_format": {"type": "text"}}, "on"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"enum": ["é"], "not": {}}},
                }
            },
            '"é"',
        ),
    ],
)
def test_every_field_that_names_a_form(client: openai.OpenAI, body: Any, pattern: str) -> None:
    done = client.completions.create(
        model="model", prompt="a", max_tokens=100, seed=1, extra_body=body
    )
    assert re.fullmatch(pattern, done.choices[0].text)
    assert done.choices[0].finish_reason == "stop"


def test_json_object_is_an_object_as_far_as_it_goes(served: Served, client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        response_format={"type": "json_object"}, max_tokens=300, **OPTIONS
    )
    (choice,) = done.choices
    assert choice.message.content and choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    (request,) = served.llm.requests
    assert request.params and request.params.structured_outputs == StructuredOutputs(
        json_object=True
    )


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_json": HOSTILE}, "guided_json", "processor time"),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
            "structured_outputs and guided_regex",
            "two forms",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "has nothing"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "not supported"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "required"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}, "strict": True},
                }
            },
            "response_format",
            "Unimplemented keys",
        ),
    ],
)
def test_a_form_that_cannot_be_kept_is_refused_by_its_field(
    client: openai.OpenAI, body: Any, param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        client.chat.completions.create(extra_body=body, **OPTIONS)
    assert str(refused.value.param).startswith(param)


@pytest.mark.slow
def test_streams_go_on_while_hostile_schemas_are_refused(
    served: Served, client: openai.OpenAI
) -> None:
    """And their text is what it is alone."""
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    expected = served.alone.generate("a", params)[0].text

    def hostile(_: int) -> int:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(extra_body={"guided_json": HOSTILE}, **OPTIONS)
        return refused.value.status_code

    def free(_: int) -> str:
        done = client.completions.create(
            model="model",
            prompt="a",
            max_tokens=300,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        return str(done.choices[0].text)

    with ThreadPoolExecutor(6) as pool:
        refused = [pool.submit(hostile, index) for index in range(3)]
        texts = list(pool.map(free, range(6)))
        assert not all(one.done() for one in refused), "chats without a form do not wait"
        assert texts == [expected] * 6
        assert [one.result() for one in refused] == [400] * 3
