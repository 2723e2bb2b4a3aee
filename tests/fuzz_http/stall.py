"""Measures the longest gap of running streams while hostile bodies arrive, one after the other.

python -m tests.fuzz_http.stall BUILD --megabytes 14
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz_http.bodies import MODEL
from tests.fuzz_http.fuzz import parsed, served
from tests.fuzz_http.raw_client import CHAT, COMPLETIONS, connected, exchange, post, post_json

STREAMS = 4
ANSWER_SECONDS = 300.0
LONG = {"model": MODEL, "prompt": "The old", "max_tokens": 1500, "ignore_eos": True}


def filled(head: str, unit: str, tail: str) -> Callable[[int], bytes]:
    """A body of about so many bytes: a unit as often as it fits."""

    def make(size: int) -> bytes:
        count = (size - len(head) - len(tail)) // len(unit)
        return (head + unit * count + tail).encode()

    return make


CHAT_HEAD, PROMPT_HEAD = '{"model":"vault","messages":[', '{"model":"vault","prompt":'
TEXT_PART = '{"type":"text","text":"a"},'
BODIES: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "empty messages": (CHAT, filled(CHAT_HEAD, "{},", "{}]}")),
    "messages": (CHAT, filled(CHAT_HEAD, '{"role":"user","content":"a"},', "{}]}")),
    "wrong roles": (CHAT, filled(CHAT_HEAD, '{"role":"x"},', "{}]}")),
    "content parts": (
        CHAT,
        filled(
            CHAT_HEAD + '{"role":"user","content":[', TEXT_PART, '{"type":"text","text":"a"}]}]}'
        ),
    ),
    "nesting": (COMPLETIONS, filled("", "[", "")),
    "token ids": (COMPLETIONS, filled(PROMPT_HEAD + "[", "1,", "1]}")),
    "prompts": (COMPLETIONS, filled(PROMPT_HEAD + "[", '"a",', '"a"]}')),
    "prompts of token ids": (COMPLETIONS, filled(PROMPT_HEAD + "[", "[1],", "[1]]}")),
    "stop texts": (COMPLETIONS, filled(PROMPT_HEAD + '"a","stop":[', '"a",', '"a"]}')),
    "logit_bias": (COMPLETIONS, filled(PROMPT_HEAD + '"a","logit_bias":{', '"1":1,', '"1":1}}')),
    "name of a field": (COMPLETIONS, filled(PROMPT_HEAD + '"a","', "x", '":1}')),
    "digits": (COMPLETIONS, filled(PROMPT_HEAD + '"a","seed":', "1", "}")),
    "prompt": (COMPLETIONS, filled(PROMPT_HEAD + '"', "a ", '"}')),
    "escapes": (COMPLETIONS, filled(PROMPT_HEAD + '"', "\\u0000", '"}')),
}


@dataclass
class Gaps:
    """The time between two parts of any of the streams."""

    last: dict[int, float] = field(default_factory=dict)
    longest: float = 0.0

    def note(self, stream: int) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last.get(stream, now))
        self.last[stream] = now

    def begin(self) -> None:
        now = time.monotonic()
        self.last, self.longest = dict.fromkeys(self.last, now), 0.0


async def _stream(port: int, index: int, gaps: Gaps) -> None:
    """Stream again and again; the pause between two streams counts too."""
    while True:
        async with connected(port) as connection:
            await connection.send(post_json(COMPLETIONS, LONG | {"stream": True}))
            answer = await connection.head()
            assert answer.status == 200, answer
            async for _ in connection.parts(answer):
                gaps.note(index)


@asynccontextmanager
async def streaming(port: int) -> AsyncIterator[Gaps]:
    gaps = Gaps()
    tasks = [asyncio.create_task(_stream(port, index, gaps)) for index in range(STREAMS)]
    await asyncio.sleep(1)
    yield gaps
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for error in results:
        if isinstance(error, Exception):
            raise error


async def measure(
    port: int, size: int, kinds: Iterable[str] = tuple(BODIES)
) -> dict[str, dict[str, Any]]:
    """By kind of body: the longest gap in seconds, the answer's time and its status."""
    rows = {}
    async with streaming(port) as gaps:
        gaps.begin()
        await asyncio.sleep(1)
        rows["no body"] = {"gap_s": round(gaps.longest, 3)}
        for name in kinds:
            path, make = BODIES[name]
            raw = post(path, make(size))
            await asyncio.sleep(0.3)
            gaps.begin()
            started = time.monotonic()
            answer = await exchange(port, raw, ANSWER_SECONDS)
            took = time.monotonic() - started
            await asyncio.sleep(0.5)
            rows[name] = {
                "gap_s": round(gaps.longest, 3),
                "answer_s": round(took, 3),
                "status": answer.status,
            }
            print(name, rows[name], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    arguments = parsed(__doc__, megabytes=14.0)
    with served(arguments.build) as serving:
        rows = asyncio.run(measure(serving.port, int(arguments.megabytes * 1e6)))
    gaps = [row["gap_s"] for name, row in rows.items() if name != "no body"]
    print(json.dumps({"median_gap_s": statistics.median(gaps), "worst_gap_s": max(gaps)}))


if __name__ == "__main__":
    main()
