"""Every client API gives the answer of the runtime in process, under concurrent requests."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from snapexport import LLM, SamplingParams
from tests.serving.triton.client import Client, Reply
from tests.serving.triton.requests import RequestCase, make

Way = Callable[[Client, RequestCase], tuple[str, tuple[int, ...], str]]


@pytest.fixture(scope="module")
def request_cases(llm: LLM) -> list[RequestCase]:
    return make(llm, 15)


def joined(replies: list[Reply]) -> tuple[str, tuple[int, ...], str]:
    assert all(reply.reason == "" for reply in replies[:-1])
    text = "".join(reply.text for reply in replies)
    return text, tuple(i for reply in replies for i in reply.token_ids), replies[-1].reason


def whole(reply: Reply) -> tuple[str, tuple[int, ...], str]:
    return reply.text, reply.token_ids, reply.reason


WAYS: dict[str, Way] = {
    "gRPC stream": lambda client, one: joined(client.stream_all(**one.inputs)),
    "gRPC stream, answered once": lambda client, one: joined(
        client.stream_all(**one.inputs | {"stream": False})
    ),
    "generate_stream": lambda client, one: joined(list(client.generate_stream(**one.inputs))),
    "generate": lambda client, one: whole(client.generate(**one.inputs)),
    "unary infer": lambda client, one: whole(client.infer(**one.inputs)),
    "unary infer by gRPC": lambda client, one: whole(client.infer_grpc(**one.inputs)),
}


def test_every_client_api_gives_the_runtimes_answer_under_concurrency(
    client: Client, request_cases: list[RequestCase]
) -> None:
    assert len({one.text for one in request_cases}) == len(request_cases), (
        "crossed streams would not show"
    )
    requests = [(name, one) for one in request_cases for name in WAYS]
    with ThreadPoolExecutor(24) as threads:
        answers = list(threads.map(lambda request: WAYS[request[0]](client, request[1]), requests))
    for (name, one), answer in zip(requests, answers, strict=True):
        assert answer == (one.text, one.token_ids, one.reason), name


def test_stream_counts_the_tokens_of_each_response(
    client: Client, request_cases: list[RequestCase]
) -> None:
    replies = client.stream_all(**request_cases[0].inputs, return_num_output_tokens=True)
    counts = [reply.outputs["num_output_tokens"][0] for reply in replies]
    assert counts == [len(reply.token_ids) for reply in replies] and min(counts) > 0
    assert sum(counts) == len(request_cases[0].token_ids) and len(counts) > 1


def test_token_counts_come_only_on_request(client: Client, llm: LLM) -> None:
    text, flags = "Register of the vault.", ("return_num_input_tokens", "return_num_output_tokens")
    (expected,) = llm.generate(text, SamplingParams(max_tokens=7, ignore_eos=True))
    inputs = {"text_input": text, "max_tokens": 7, "ignore_eos": True}
    outputs = client.generate(**inputs, **dict.fromkeys(flags, True)).outputs
    assert outputs["num_input_tokens"] == [len(expected.prompt_token_ids)]
    assert outputs["num_output_tokens"] == [7]
    quiet = client.generate(**inputs).outputs
    assert not {"num_input_tokens", "num_output_tokens", "output_logprobs"} & set(quiet)


def test_response_has_exactly_the_named_output(client: Client) -> None:
    import tritonclient.grpc as grpc

    from tests.serving.triton.client import tensors

    inputs = tensors({"text_input": "The", "max_tokens": 2})
    with grpc.InferenceServerClient(client.server.grpc) as raw:
        for name in ("finish_reason", "num_input_tokens", "num_output_tokens", "output_logprobs"):
            wanted = [grpc.InferRequestedOutput(name)]
            answer = raw.infer(client.unary_name, inputs, outputs=wanted).get_response()
            assert [output.name for output in answer.outputs] == [name]


def test_input_ids_give_the_same_answer_as_their_text(client: Client, llm: LLM) -> None:
    (expected,) = llm.generate("The vault", SamplingParams(max_tokens=9))
    by_ids = client.generate(input_ids=list(expected.prompt_token_ids), max_tokens=9)
    assert whole(by_ids) == whole(client.generate(text_input="The vault", max_tokens=9))
    assert whole(by_ids) == (expected.text, expected.token_ids, expected.finish_reason)


def test_prompt_is_echoed_on_request(client: Client) -> None:
    plain = client.generate(text_input="The vault", max_tokens=3).text
    inputs = {"text_input": "The vault", "max_tokens": 3, "exclude_input_in_output": False}
    assert client.generate(**inputs).text == "The vault" + plain
    assert joined(client.stream_all(**inputs))[0] == "The vault" + plain
