"""Puts a server under load for long, with clients that leave, and watches what it keeps.

    python -m tests.fuzz_http.soak BUILD --requests 10000

A third of the requests are left. Fails if an answer differs from the same request's alone, if
memory grows, or if batch slots or files are kept.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz_http.bodies import MODEL
from tests.fuzz_http.fuzz import parsed, served
from tests.fuzz_http.raw_client import CHAT, COMPLETIONS, connected, exchange, post_json
from tests.serving.process import read_metrics, resident_bytes

AT_ONCE = 24
"""Requests that run and wait at once."""
PROMPTS = ("The old", "The register", "a", "Once upon a time there was a small")
MOST_GROWTH = 64 << 20
"""Bytes by which the server's memory may grow after the first tenth."""
PATIENCE = 300.0


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


def kept_by(pid: int) -> tuple[int, int, int]:
    """MiB of memory, open files and threads of a process."""
    files, threads = (len(list(Path(f"/proc/{pid}/{each}").iterdir())) for each in ("fd", "task"))
    return resident_bytes(pid) >> 20, files, threads


async def run(port: int, url: str, pid: int, requests: int) -> dict[str, Any]:
    """What was counted, and what the server keeps: after the first tenth, and in the end."""
    soak, kept = Soak(port), []
    await soak.learn()
    for count in (max(1, requests // 10), requests - requests // 10):
        await many_requests(soak, count)
        kept.append(kept_by(pid))
    await asyncio.sleep(7)  # connections that are kept alive close after 5 s
    kept[-1] = kept_by(pid)
    metrics = await asyncio.to_thread(read_metrics, f"{url}/metrics")
    left = {name: metrics[name] for name in ("slots_used", "requests_waiting")}
    return {"counts": dict(soak.counts), "memory_files_threads": kept, **left}


def problems(report: dict[str, Any]) -> list[str]:
    """What must not be in a report."""
    usual = {"same", "left", "queue full"}
    found = [f"{name}: {n}" for name, n in report["counts"].items() if name not in usual]
    (early, files, _), (late, files_left, _) = report["memory_files_threads"]
    if (late - early) << 20 > MOST_GROWTH:
        found.append(f"memory grew from {early} to {late} MiB")
    if files_left > files + 8:
        found.append(f"{files_left} files are open, {files} were")
    if report["slots_used"] or report["requests_waiting"]:
        found.append("batch slots are kept")
    return found


def main() -> int:
    arguments = parsed(__doc__, requests=10_000)
    with served(arguments.build) as serving:
        pid = serving.process.pid
        report = asyncio.run(run(serving.port, serving.url, pid, arguments.requests))
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
