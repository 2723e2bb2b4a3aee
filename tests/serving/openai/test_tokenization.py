"""/tokenize and /detokenize, in vLLM's shapes; and the document of the API."""

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served
from tests.serving.process import SECONDS

CHAT = [{"role": "user", "content": "Hi"}]


def post(served: Served, path: str, **body: Any) -> Any:
    request = Request(
        served.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


def test_text_becomes_the_prompts_tokens_and_back(served: Served) -> None:
    answer = post(served, "/tokenize", model="model", prompt="Hé", return_token_strs=True)
    ids = byte_level().encode("Hé").ids
    names = [byte_level().id_to_token(token) for token in ids]
    assert answer == {"count": 3, "max_model_len": 200, "tokens": ids, "token_strs": names}
    assert post(served, "/detokenize", tokens=ids) == {"prompt": "Hé"}


def test_chat_becomes_the_tokens_that_its_answer_follows(served: Served) -> None:
    tokens = post(served, "/tokenize", messages=CHAT)["tokens"]
    post(served, "/v1/chat/completions", model="model", messages=CHAT, max_tokens=1)
    (request,) = served.llm.requests
    assert tokens == list(request.prompt_token_ids)
    shorter = post(served, "/tokenize", messages=CHAT, add_generation_prompt=False)["tokens"]
    assert tokens[: len(shorter)] == shorter and len(shorter) < len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/tokenize", {}, "give one of them"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, "give one of them"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "is not served here"),
        ("/tokenize", {"prompt": "a" * 70_000}, "maximum context length is 200 tokens"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x is not supported"),
        ("/detokenize", {"tokens": [1, 257]}, "257 is not a token"),
        ("/detokenize", {"tokens": [-1]}, "-1 is not a token"),
        ("/detokenize", {"tokens": "a"}, "valid list"),
    ],
)
def test_wrong_body_is_refused(served: Served, path: str, body: dict[str, Any], says: str) -> None:
    assert says in post(served, path, **body)["error"]["message"]


def test_openapi_document_has_each_routes_fields(served: Served) -> None:
    with urlopen(f"{served.url}/openapi.json", timeout=SECONDS) as answer:
        document = json.load(answer)
    for path, field, required in (
        ("/v1/chat/completions", "max_completion_tokens", ["messages", "model"]),
        ("/v1/completions", "echo", ["model", "prompt"]),
        ("/tokenize", "return_token_strs", []),
    ):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = document["components"]["schemas"][body["schema"]["$ref"].split("/")[-1]]
        assert sorted(schema.get("required", ())) == required
        assert {field, "metadata", "suffix"} <= schema["properties"].keys()
        assert schema["additionalProperties"] is False
    components = document["components"]["schemas"]
    for body, tool in (("ChatRequest", "Tool"), ("MessagesRequest", "ClientTool")):
        items = json.dumps(components[body]["properties"]["tools"])
        assert f'"#/components/schemas/{tool}"' in items
    assert "input_schema" in components["ClientTool"]["properties"]
    assert "include_usage" in components["StreamOptions"]["properties"]
    assert document["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["name"] == "name"
