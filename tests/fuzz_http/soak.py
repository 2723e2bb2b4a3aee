"""Puts a server under load for long, with clients that leave, and watches what it keeps.

    python -m tests.fuzz_http.soak BUILD --requests 10000 --minutes 5

First as many requests with random cancels, then 200 clients of whom half leave. Fails if an answer
differs from the same request's alone, if memory grows, or if slots, files or threads are kept.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz_http.bodies import MODEL
from tests.fuzz_http.fuzz import served
from tests.fuzz_http.raw_client import CHAT, COMPLETIONS, connected, exchange, post_json
from tests.serving.process import read_metrics

CLIENTS = 200
AT_ONCE = 24
"""Requests of the first part that run and wait at once."""
PROMPTS = ("The old", "The register", "a", "Once upon a time there was a small")
MOST_GROWTH = 64 << 20
"""Bytes by which the server's memory may grow after the first tenth."""
PATIENCE = 60.0


def body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that is the same whenever it is sent."""
    options = {"model": MODEL, "temperature": 0, "max_tokens": chance.choice([1, 4, 16, 48])}
    if chance.random() < 0.3:
        talk = [{"role": "user", "content": chance.choice(PROMPTS)}]
        return CHAT, {"messages": talk, **options}
    return COMPLETIONS, {"prompt": chance.choice(PROMPTS), "ignore_eos": True, **options}


@dataclass
class Soak:
    """What became of the requests. expected: the answer of each body alone."""

    port: int
    counts: Counter[str] = field(default_factory=Counter)
    expected: dict[str, str] = field(default_factory=dict)

    async def learn(self) -> None:
        """Ask for each possible body alone."""
        for seed in range(200):
            path, given = body(random.Random(f"body {seed}"))
            if (key := json.dumps(given)) not in self.expected:
                answer = await exchange(self.port, post_json(path, given))
                self.expected[key] = _text(answer.json)

    async def ask(self, chance: random.Random, leaving: float) -> None:
        """One request, which is left after a while with this probability."""
        path, given = body(random.Random(f"body {chance.randrange(200)}"))
        stream = chance.random() < 0.5
        leaves = chance.uniform(0, 0.3) if chance.random() < leaving else PATIENCE
        try:
            async with asyncio.timeout(leaves), connected(self.port) as connection:
                await connection.send(post_json(path, given | {"stream": stream}))
                answer = await connection.answer()
        except TimeoutError:
            self.counts["left" if leaves < PATIENCE else "hung"] += 1
            return
        except OSError:
            self.counts["refused connections"] += 1
            return
        self._judge(answer, json.dumps(given), stream)

    def _judge(self, answer: Any, key: str, stream: bool) -> None:
        if answer.status == 503:
            self.counts["queue full"] += 1
        elif answer.status != 200:
            self.counts[f"status {answer.status}"] += 1
        else:
            text = _streamed(answer.body) if stream else _text(answer.json)
            self.counts["same" if text == self.expected[key] else "differs"] += 1


def _text(value: Any) -> str:
    choice = value["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def _streamed(raw: bytes) -> str:
    events = [one.removeprefix(b"data: ") for one in raw.split(b"\n\n") if one]
    choices = [json.loads(one)["choices"][0] for one in events if one != b"[DONE]"]
    return "".join(
        one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices
    )


async def many_requests(soak: Soak, count: int) -> None:
    """As many requests, a third of them left."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await soak.ask(random.Random(f"request {number}"), leaving=0.33)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def many_clients(soak: Soak, seconds: float) -> None:
    """200 clients, half of whom leave each request."""
    end = time.monotonic() + seconds

    async def client(index: int) -> None:
        chance = random.Random(f"client {index}")
        while time.monotonic() < end:
            await soak.ask(chance, leaving=index % 2)
            await asyncio.sleep(chance.uniform(0, 0.2))

    await asyncio.gather(*(client(index) for index in range(CLIENTS)))


class Watch:
    """Memory, open files and threads of a process."""

    def __init__(self, pid: int) -> None:
        self._home = Path(f"/proc/{pid}")

    def memory(self) -> int:
        pages = int((self._home / "statm").read_text().split()[1])
        return pages * 4096

    def files(self) -> int:
        return len(list((self._home / "fd").iterdir()))

    def threads(self) -> int:
        return len(list((self._home / "task").iterdir()))


async def run(port: int, url: str, watch: Watch, requests: int, minutes: float) -> dict[str, Any]:
    """Both parts; what was counted, and what the server keeps."""
    soak = Soak(port)
    await soak.learn()
    await many_requests(soak, max(1, requests // 10))
    early = watch.memory(), watch.files(), watch.threads()
    await many_requests(soak, requests - requests // 10)
    first = dict(soak.counts)
    soak.counts.clear()
    middle = watch.memory()
    await many_clients(soak, minutes * 60)
    await asyncio.sleep(7)  # connections that are kept alive close after 5 s
    metrics = await asyncio.to_thread(read_metrics, f"{url}/metrics")
    return {
        "requests": first,
        "clients": dict(soak.counts),
        "memory_mib": [round(one / 2**20) for one in (early[0], middle, watch.memory())],
        "files": [early[1], watch.files()],
        "threads": [early[2], watch.threads()],
        "slots_used": metrics["slots_used"],
        "requests_waiting": metrics["requests_waiting"],
    }


def problems(report: dict[str, Any]) -> list[str]:
    """What must not be in a report."""
    counts = Counter(report["requests"]) + Counter(report["clients"])
    usual = {"same", "left", "queue full"}
    found = [f"{name}: {count}" for name, count in counts.items() if name not in usual]
    memory = report["memory_mib"]
    if (memory[-1] - memory[0]) << 20 > MOST_GROWTH:
        found.append(f"memory grew: {memory} MiB")
    if report["files"][1] > report["files"][0] + 8:
        found.append(f"files are kept: {report['files']}")
    if report["slots_used"] or report["requests_waiting"]:
        found.append("batch slots are kept")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=5)
    arguments = parser.parse_args()
    with served(arguments.build) as serving:
        watch = Watch(serving.process.pid)
        work = run(serving.port, serving.url, watch, arguments.requests, arguments.minutes)
        report = asyncio.run(work)
        status, log = serving.end()
    report |= {"status": status, "tracebacks": log.count("Traceback")}
    found = problems(report)
    if status or report["tracebacks"]:
        found.append(f"the log: {log[-2000:]}")
    print("\n".join(found), file=sys.stderr)
    print(json.dumps(report))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
