"""The API in a thread, over the in-process worker and a fake of Triton, and OpenAI's client."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass

import openai
import pytest

from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.requests.llm import LLM
from snapexport.serving.in_process import InProcessGenerator
from snapexport.serving.openai.api_server import Api
from snapexport.serving.openai.health import Health
from snapexport.serving.openai.http_server import listening
from snapexport.serving.openai.preprocess import Preprocessor
from snapexport.serving.triton.client import TritonGenerator
from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.fake_triton import FakeTriton
from tests.serving.openai.watched_llm import LIMITS, SleepingLLM, WatchedLLM, make_llm

MAX_PENDING = 64
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no ' + m.role + ' here') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if thinks %}<think>{% endif %}{% if repeats %}{{ 'x' * repeats }}{% endif %}"
)
SPECIAL = {"bos_token": "</s>"}

Generators = InProcessGenerator | TritonGenerator


@dataclass
class Served:
    """An API that answers at `url`, and what is behind it. triton: the fake, if it is."""

    url: str
    llm: WatchedLLM
    api: Api
    alone: LLM
    """The same model by itself."""
    loop: asyncio.AbstractEventLoop
    triton: FakeTriton | None

    @property
    def generator(self) -> Generators:
        generator = self.api.health.generator
        assert isinstance(generator, Generators)
        return generator

    def client(self, retries: int = 0) -> openai.OpenAI:
        url = f"{self.url}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=retries, timeout=10)


def in_process(llm: LLM, seconds: float = 20, max_pending: int = MAX_PENDING) -> InProcessGenerator:
    """Started in the running event loop."""
    generator = InProcessGenerator(
        llm,
        max_pending=max_pending,
        request_seconds=seconds,
        labels={"model": "model", "version": "1"},
        gauges={"slots": 3, "cache_bytes": 1, "full_cache_bytes": 4},
        log=print,
    )
    generator.start()
    return generator


@asynccontextmanager
async def backing(kind: str) -> AsyncIterator[tuple[WatchedLLM, Generators, FakeTriton | None]]:
    if kind == "in process":
        llm = make_llm(SleepingLLM)
        generator = in_process(llm)
        yield llm, generator, None
        await generator.close()
        return
    triton = FakeTriton(make_llm())
    client = TritonGenerator(await triton.start(), "model", seconds=20)
    yield triton.llm, client, triton
    await client.close()
    await triton.stop()


async def serve(kind: str, started: "Future[Served]", ended: asyncio.Event) -> None:
    preprocessor = Preprocessor(byte_level(), ChatTemplate(TEMPLATE, SPECIAL), LIMITS)
    async with backing(kind) as (llm, generator, triton):
        api = Api("model", preprocessor, Health(generator, patience_seconds=1))
        listener = socket.create_server(("127.0.0.1", 0))
        async with listening(api, listener):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            loop = asyncio.get_running_loop()
            started.set_result(Served(url, llm, api, make_llm(), loop, triton))
            await ended.wait()


def soon(holds: Callable[[], bool], seconds: float = 3) -> bool:
    """Whether it comes to hold within some seconds: the other side has its own pace."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


@pytest.fixture(scope="session", params=["in process", "triton"])
def running(request: pytest.FixtureRequest) -> Iterator[Served]:
    started: Future[Served] = Future()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    serving = serve(request.param, started, ended)
    thread = threading.Thread(target=lambda: loop.run_until_complete(serving))
    thread.start()
    yield started.result(10)
    loop.call_soon_threadsafe(ended.set)
    thread.join(10)
    loop.close()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The running one; what a test changes of the LLM or the fake is undone."""
    running.llm.requests.clear()
    yield running
    running.llm.seconds, running.llm.stands_still = 0.0, False
    if running.triton:
        running.triton.refusal = None
    assert soon(lambda: running.api.gate.inside == 0), "a request never left"
    assert soon(lambda: running.llm.slots_used == 0), "a batch slot is still held"


@pytest.fixture
def slow(served: Served) -> Served:
    served.llm.seconds = 0.01
    return served


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return served.client()
