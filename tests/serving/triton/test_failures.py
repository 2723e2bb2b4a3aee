"""A failing executor: its requests end with the error, and the loop goes on."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from snapexport import LLM, SamplingParams
from tests.serving.triton.client import IDLE, Client, HttpError
from tests.serving.triton.server import Server, ServerError

PREFILL_FAILS, DECODE_FAILS, NOT_FINITE = 77, 78, 79
"""Prompts of these lengths meet a planted fault."""

FAULTY_MODEL = f"""
import numpy as np
from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.serving.triton.models import StreamingModel


class TritonPythonModel(StreamingModel):
    def load(self, *given):
        model = super().load(*given)
        executor = model.llm.executor
        take, decode = executor.take, executor.decode

        def faulty_take(slot, token_ids, piece, temperature=1.0):
            prompt_length = piece.end
            if prompt_length == {PREFILL_FAILS}:
                raise RuntimeError("planted in prefill")
            prediction = take(slot, token_ids, piece, temperature)
            no_numbers = Prediction(lambda: np.full_like(prediction.logits, np.nan))
            return no_numbers if prompt_length == {NOT_FINITE} else prediction

        def faulty_decode(input_ids, position_ids, prompt_length, temperature=None):
            if {DECODE_FAILS} in prompt_length:
                raise RuntimeError("planted in decode")
            return decode(input_ids, position_ids, prompt_length, temperature)

        executor.take, executor.decode = faulty_take, faulty_decode
        return model
"""


@pytest.fixture(scope="module")
def faulty_client(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    copy = tmp_path_factory.mktemp("faulty") / "repository"
    shutil.copytree(repository, copy, symlinks=True)
    (copy / "vault/1/model.py").write_text(FAULTY_MODEL)
    with Server(copy) as running:
        yield Client(running, "vault")


def ids(length: int) -> list[int]:
    return [5] * length


def test_failing_prefill_ends_only_its_own_request(faulty_client: Client, llm: LLM) -> None:
    params = SamplingParams(max_tokens=2200, ignore_eos=True)
    (expected,) = llm.generate(ids(30), params)
    with faulty_client.stream(input_ids=ids(30), max_tokens=2200, ignore_eos=True) as neighbour:
        got = [neighbour.next()]
        for message, length in (("RuntimeError: planted in prefill", PREFILL_FAILS),
                                ("logits are not finite", NOT_FINITE)):  # fmt: skip
            with pytest.raises(HttpError, match=message) as failed:
                faulty_client.infer(input_ids=ids(length))
            assert failed.value.status == 500
        got += neighbour.come()
        assert not got[-1].reason, "the neighbour had ended already: nothing was shown"
        got += list(neighbour)
    assert tuple(i for reply in got for i in reply.token_ids) == expected.token_ids
    faulty_client.settled(**IDLE)


def test_failing_decode_ends_running_requests_and_the_next_are_served(
    faulty_client: Client, llm: LLM
) -> None:
    before = faulty_client.quiet()["requests_failed_total"]
    errors: list[str] = []

    def run_into_it() -> None:
        stream = faulty_client.stream(input_ids=ids(30), max_tokens=2000, ignore_eos=True)
        with pytest.raises(InferenceServerException) as failed, stream as replies:
            list(replies)
        errors.append(str(failed.value))

    threads = [threading.Thread(target=run_into_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    faulty_client.settled(requests_running=3)
    with pytest.raises(HttpError, match="RuntimeError: planted in decode"):
        faulty_client.generate(input_ids=ids(DECODE_FAILS))
    for thread in threads:
        thread.join()
    assert len(errors) == 3 and all("planted in decode" in error for error in errors)
    faulty_client.settled(**IDLE, requests_failed_total=before + 4)
    (expected,) = llm.generate(ids(30), SamplingParams(max_tokens=20))
    assert faulty_client.generate(input_ids=ids(30), max_tokens=20).token_ids == expected.token_ids


def test_repeated_failures_leave_every_batch_slot_free(faulty_client: Client) -> None:
    for length in [PREFILL_FAILS, DECODE_FAILS, NOT_FINITE] * 6:
        with pytest.raises(HttpError):
            faulty_client.infer(input_ids=ids(length))
    faulty_client.settled(**IDLE)


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(
    repository: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(repository, tmp_path / "repository", symlinks=True))
    config = broken / "vault/config.pbtxt"
    config.write_text(config.read_text().replace('"max_pending"', '"max_queue"', 1))
    with pytest.raises(ServerError, match="parameter max_queue '64': Extra inputs are not permitt"):
        Server(broken)


def test_server_with_running_streams_stops_in_time(repository: Path) -> None:
    with ExitStack() as stack, Server(repository) as server:
        client = Client(server, "vault")
        for _ in range(8):
            stream = client.stream(text_input="The vault", max_tokens=2200, ignore_eos=True)
            stack.enter_context(stream).next()
        server.stop()
        assert not Path(f"/proc/{server.pid}").exists()
