"""The API in a thread, over an LLM on the fake executor, and OpenAI's client."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import openai
import pytest

from snapexport.runtime import confined
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.requests.llm import LLM
from snapexport.serving.health import Health
from snapexport.serving.model import Model
from snapexport.serving.openai.api import Api
from snapexport.serving.serve import listening
from tests.serving.openai.watched_llm import WatchedLLM, make_llm
from tests.serving.process import SECONDS

MAX_PENDING = 64
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no ' + m.role + ' here') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if thinks %}<think>{% endif %}{% if repeats %}{{ 'x' * repeats }}{% endif %}"
)
SPECIAL = {"bos_token": "</s>"}


@dataclass
class Served:
    """An API that answers at `url`, and what runs it."""

    url: str
    llm: WatchedLLM
    api: Api
    alone: LLM
    """The same model by itself."""
    loop: asyncio.AbstractEventLoop

    @property
    def model(self) -> Model:
        return self.api.model

    def client(self, retries: int = 0) -> openai.OpenAI:
        url = f"{self.url}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=retries, timeout=SECONDS)


def started(llm: LLM, seconds: float = SECONDS, max_pending: int = MAX_PENDING) -> Model:
    """A model whose worker runs, for the running event loop."""
    model = Model(
        "model",
        llm,
        log=print,
        template=ChatTemplate(TEMPLATE, SPECIAL),
        gauges={"slots": 3, "cache_bytes": 1, "full_cache_bytes": 4},
        max_pending=max_pending,
        request_seconds=seconds,
    )
    model.streams.start()
    return model


async def serve(begun: "Future[Served]", ended: asyncio.Event) -> None:
    llm = make_llm()
    model = started(llm)
    api = Api(model, Health(model.streams))
    listener = socket.create_server(("127.0.0.1", 0))
    async with listening(api, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        begun.set_result(Served(url, llm, api, make_llm(), asyncio.get_running_loop()))
        await ended.wait()
    await model.streams.close()


def soon(holds: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether it comes to hold: the other side has its own pace."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


async def until(holds: Callable[[], object]) -> None:
    """Wait until it comes to hold, in an event loop."""
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Let workers be ended by their processor time, and not by the clock of a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confined, "SECONDS", SECONDS)
        yield


@pytest.fixture(scope="session")
def running() -> Iterator[Served]:
    begun: Future[Served] = Future()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(begun, ended)))
    thread.start()
    yield begun.result(SECONDS)
    loop.call_soon_threadsafe(ended.set)
    thread.join(SECONDS)
    loop.close()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The running one; what a test changes of the LLM is undone."""
    running.llm.requests.clear()
    yield running
    running.llm.seconds, running.llm.stands_still = 0.0, False
    assert soon(lambda: running.api.gate.inside == 0), "a request never left"
    assert soon(lambda: running.llm.slots_used == 0), "a batch slot is still held"


@pytest.fixture
def slow(served: Served) -> Served:
    served.llm.seconds = 0.01
    return served


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return served.client()
