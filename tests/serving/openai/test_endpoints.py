"""A route that generates is a row: one of a test's own is served beside OpenAI's."""

import asyncio
import json
import socket
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.model import Model
from snapexport.serving.openai.api import ENDPOINTS, Api, Endpoint
from snapexport.serving.openai.bodies.completions import CompletionRequest
from snapexport.serving.openai.requests import Prepared, completion
from snapexport.serving.openai.writers.choices import CompletionWriter
from snapexport.serving.serve import listening
from tests.serving.openai.conftest import Served
from tests.serving.process import SECONDS


class Loud(CompletionRequest):
    """A body with a field of its own."""

    mark: str


class LoudWriter(CompletionWriter):
    """An answer of its own form."""

    whole_name = "loud"

    def _choice(self, index: int, answer: OutputDelta) -> dict[str, Any]:
        return {"shouted": answer.text.upper()}


def prepared(model: Model, body: Loud) -> Prepared:
    marked = [f"{body.mark}{text}" for text in body.prompt]
    return completion(model, body.model_copy(update={"prompt": marked}))


async def ask(api: Api, path: str, **body: Any) -> Any:
    given = {"model": "model", "prompt": "a", "max_tokens": 4, "temperature": 0} | body
    listener = socket.create_server(("127.0.0.1", 0))
    async with listening(api, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        request = Request(url, json.dumps(given).encode(), {"Content-Type": "application/json"})
        return await asyncio.to_thread(_answer, request)


def _answer(request: Request) -> Any:
    try:
        with urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


def test_route_of_another_form_is_a_row_of_the_table(served: Served) -> None:
    loud = Endpoint("/v1/loud", Loud, prepared, LoudWriter)
    api = Api(served.model, served.api.health, endpoints=(*ENDPOINTS, loud))

    def asked(path: str, **body: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(ask(api, path, **body), served.loop).result(SECONDS)

    plain = asked("/v1/completions", prompt="!a")["choices"][0]["text"]
    answer = asked("/v1/loud", mark="!")
    assert (answer["object"], answer["choices"]) == ("loud", [{"shouted": plain.upper()}])
    assert answer["usage"]["completion_tokens"] == 4
    assert asked("/v1/loud")["error"]["param"] == "mark"
