"""Bodies are bounded before they are parsed: the counts are right, and parsing stalls nobody."""

import asyncio
import json
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapexport.serving.openai.bodies import parsing as body_reader
from snapexport.serving.openai.bodies.chat import ChatRequest
from snapexport.serving.openai.bodies.completions import CompletionRequest
from snapexport.serving.openai.bodies.parsing import BodyReader, parse_bounded, require_modest
from snapexport.serving.openai.http.errors import ApiError
from tests.serving.openai.conftest import Served
from tests.serving.openai.test_refusals import refused

MANY = 20_000

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def counts(value: Any) -> tuple[int, int, int, int]:
    """Objects and lists, names, values and levels of a parsed value."""
    if not isinstance(value, dict | list):
        return 0, 0, 1, 0
    inner = [counts(one) for one in (value.values() if isinstance(value, dict) else value)]
    names = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(one[0] for one in inner),
        names + sum(one[1] for one in inner),
        1 + sum(one[2] for one in inner),
        1 + max((one[3] for one in inner), default=0),
    )


def is_modest(raw: bytes) -> bool:
    try:
        require_modest(raw)
    except ApiError:
        return False
    return True


@given(json_values, st.booleans())
def test_body_is_refused_by_its_number_of_lists_names_values_and_levels(
    value: Any, ascii_only: bool
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    containers, names, values, depth = counts(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_reader, "MOST_CONTAINERS", containers)
        patch.setattr(body_reader, "MOST_NAMES", names)
        patch.setattr(body_reader, "MOST_VALUES", values + containers)  # an upper bound is counted
        patch.setattr(body_reader, "MOST_DEPTH", depth)
        assert is_modest(raw)
        for name, least in (("CONTAINERS", containers), ("NAMES", names), ("DEPTH", depth)):
            if least:
                patch.setattr(body_reader, f"MOST_{name}", least - 1)
                assert not is_modest(raw)
                patch.setattr(body_reader, f"MOST_{name}", least)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"messages": [' + "{}," * MANY + "{}]}", "objects and lists"),
        ('{"logit_bias": {' + '"1": 1,' * MANY + '"1": 1}}', "names"),
        ('{"prompt": [' + "1," * (1 << 20) + "1]}", "values"),
        ('{"stop": [' + '"a",' * (1 << 20) + '"a"]}', "values"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "64 levels"),
    ],
)
def test_body_of_too_many_values_is_refused_unparsed(body: str, says: str) -> None:
    with pytest.raises(ApiError, match=f"the body has more than .*{says}"):
        parse_bounded(ChatRequest, body.encode())


def test_brackets_and_commas_in_texts_count_for_nothing() -> None:
    prompt = '\\"[{,:' * MANY
    body = parse_bounded(
        CompletionRequest, json.dumps({"model": "model", "prompt": prompt}).encode()
    )
    assert body.prompt == [prompt]


def test_bodies_together_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "MOST_BYTES_TOGETHER", 1000)
    url = f"{served.url}/v1/completions"
    body = json.dumps({"model": "model", "prompt": "a" * 1000}).encode()
    for _ in range(2):  # what was refused holds nothing
        assert "other requests" in refused(url, body, 503)["message"]
    assert "other" not in refused(url, body[:800], 400)["message"]


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 400 + ".5"])
@pytest.mark.parametrize("name", ["logit_bias", "tools", "messages"])
def test_number_that_no_double_is_is_refused_wherever_it_is(number: str, name: str) -> None:
    raw = f'{{"model": "m", "{name}": [{{"a": {{"b": {number}}}}}]}}'
    with pytest.raises(ApiError, match=f"{name} has a number beyond") as error:
        parse_bounded(ChatRequest, raw.encode())
    assert error.value.body["error"]["param"] == name


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (f'"temperature": -{10**400}', "temperature has a number beyond the range of a double"),
        (f'"seed": {"1" * 5000}', "the body has a number of over 4,300 digits at line 1"),
        ('"metadata": {"a": 1e400}', None),
        (f'"response_format": {{"type": "json_object", "maximum": {10**400}}}', "maximum"),
    ],
)
def test_numbers_that_are_too_large_are_refused_as_such(field: str, why: str | None) -> None:
    raw = f'{{"model": "m", "messages": [{{"role": "user", "content": "a"}}], {field}}}'.encode()
    with pytest.raises(ApiError, match=why) if why else nullcontext():
        parse_bounded(ChatRequest, raw)


@pytest.mark.anyio
async def test_loop_runs_while_a_large_body_is_parsed() -> None:
    request = FakeRequest(json.dumps({"model": "model", "prompt": [1] * 1_000_000}).encode())
    turns = 0
    reading = asyncio.ensure_future(_read(request))
    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 5, "a loop that waits for the parser has two"
    assert len((await reading).prompt[0]) == 1_000_000


async def _read(request: "FakeRequest") -> CompletionRequest:
    async with BodyReader().body(request, CompletionRequest) as body:  # type: ignore[arg-type]
        return body


class FakeRequest:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def stream(self) -> Any:
        yield self._body
