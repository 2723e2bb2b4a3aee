"""The API over a fake of Triton, both in a thread, and OpenAI's own client before them."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import openai
import pytest

from snapexport.runtime.llm import LLM
from snapexport.serving.chat import ChatTemplate
from snapexport.serving.openai.app import Api
from snapexport.serving.openai.front import listening
from snapexport.serving.openai.pulse import Pulse
from snapexport.serving.openai.reader import Reader
from snapexport.serving.openai.triton import TritonGenerator
from tests.openai.fake_triton import FakeTriton
from tests.runtime.fake_executor import FakeExecutor, make_limits
from tests.runtime.tokenizers_for_tests import byte_level

SLOTS = 3
LIMITS = make_limits(batch=SLOTS, longest_prompt=200, positions=2000)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no ' + m.role + ' here') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if thinks %}<think>{% endif %}{% if repeats %}{{ 'x' * repeats }}{% endif %}"
)
SPECIAL = {"bos_token": "</s>"}


@dataclass
class Served:
    """An API that answers at `url`, and what is behind it."""

    url: str
    triton: FakeTriton
    api: Api
    alone: LLM
    """The same model by itself."""
    loop: asyncio.AbstractEventLoop

    def client(self, retries: int = 0) -> openai.OpenAI:
        url = f"{self.url}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=retries, timeout=10)


def make_llm() -> LLM:
    return LLM.from_executor(FakeExecutor(LIMITS), byte_level())


async def serve(told: "Future[Served]", ended: asyncio.Event) -> None:
    triton = FakeTriton(make_llm())
    generator = TritonGenerator(await triton.start(), "model", seconds=20)
    reader = Reader(byte_level(), ChatTemplate(TEMPLATE, SPECIAL), LIMITS)
    api = Api("model", reader, Pulse(generator, patience_seconds=1), metrics)
    listener = socket.create_server(("127.0.0.1", 0))
    async with listening(api, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        told.set_result(Served(url, triton, api, make_llm(), asyncio.get_running_loop()))
        await ended.wait()
    await generator.close()
    await triton.stop()


async def metrics() -> bytes:
    return b"answers_total 42\n"


def soon(holds: Callable[[], bool], seconds: float = 3) -> bool:
    """Whether it comes to hold within some seconds: the other side has its own pace."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


@pytest.fixture(scope="session")
def running() -> Iterator[Served]:
    told: Future[Served] = Future()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(told, ended)))
    thread.start()
    yield told.result(10)
    loop.call_soon_threadsafe(ended.set)
    thread.join(10)
    loop.close()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The running one; what a test changes of the fake is undone."""
    running.triton.asked.clear()
    yield running
    running.triton.seconds, running.triton.refusal = 0.0, None
    assert soon(lambda: running.api.gate.inside == 0), "a request was never left"


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return served.client()
