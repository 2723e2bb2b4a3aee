"""Puts a server under load, and reads its resident memory meanwhile.

Clients send prompts of up to L_max tokens, repeated ones that drafts guess, chats with grammars and
answers with log probabilities. A third leave early, and some read nothing of what they asked for.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz_http.fuzz import served
from tests.fuzz_http.raw_client import CHAT, COMPLETIONS, connected, post_json
from tests.serving.process import Serving, read_metrics, resident_bytes, serve

CLIENTS = 200
EACH = 1.0
"""Seconds between two readings of the memory."""
GRACE = 30.0
"""Seconds after which the clients of running requests leave in the end."""


@dataclass
class Readings:
    """bound: as /metrics says. resident: bytes, at each reading. peak: the kernel's own figure.

    statuses: of the answers, and how often a client left.
    """

    bound: int = 0
    resident: list[int] = field(default_factory=list)
    peak: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


def problems(readings: Readings, looseness: float | None = None) -> list[str]:
    """What must not be. looseness: the most that the bound may be, as a multiple of the peak."""
    found = []
    if beyond := [one for one in (*readings.resident, readings.peak) if one > readings.bound]:
        found.append(f"{max(beyond)} bytes are resident, the bound is {readings.bound}")
    if looseness and readings.bound > looseness * readings.peak:
        found.append(f"the bound is {readings.bound / readings.peak:.2f} times the peak")
    if not readings.statuses["200"]:
        found.append(f"nothing was answered: {dict(readings.statuses)}")
    wrong = readings.statuses.keys() - {"200", "503", "left"}
    return [*found, *(f"{readings.statuses[one]} answers have status {one}" for one in wrong)]


@dataclass(frozen=True)
class Load:
    """A mix of requests. longest: tokens of a prompt. vocabulary: tokens of the model."""

    port: int
    longest: int
    vocabulary: int
    model: str = "vault"

    def body(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        """A request of some kind."""
        tokens = chance.choice((4, 8, 32))
        common = {"model": self.model, "max_tokens": tokens, "stream": chance.random() < 0.5}
        kind = chance.choice(("long", "short", "short", "repeated", "form", "likely"))
        if kind == "form":
            name = f"field{chance.randrange(200)}"
            fields = {name: {"type": "string"}, "count": {"type": "integer"}}
            schema = {"type": "object", "properties": fields, "required": [name]}
            form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
            talk = [{"role": "user", "content": f"Fill {name} in."}]
            return CHAT, {**common, "messages": talk, "response_format": form}
        most = self.longest if kind == "long" else min(self.longest, 200)
        count = chance.randint(max(1, most - 40), most) - 1 if kind == "long" else most
        count = max(1, min(count, self.longest - tokens))
        prompt = [chance.randrange(3, self.vocabulary) for _ in range(count)]
        if kind == "repeated":
            prompt = (prompt[:20] * count)[:count]
        likely = {"logprobs": 5} if kind == "likely" else {}
        return COMPLETIONS, {**common, **likely, "prompt": prompt, "ignore_eos": True}

    async def client(self, number: int, until: float, statuses: Counter[str]) -> None:
        """Send requests until then, one at a time."""
        chance = random.Random(f"client {number}")
        while time.monotonic() < until:
            try:
                status = await self._ask(chance, until)
            except OSError:
                status = "refused"
            statuses[status] += 1
            if status in ("503", "refused"):
                await asyncio.sleep(chance.uniform(0.5, 1.5))

    async def _ask(self, chance: random.Random, until: float) -> str:
        path, given = self.body(chance)
        leaves = chance.random() < 0.33
        seconds = chance.uniform(0, 3) if leaves else until + GRACE - time.monotonic()
        reads = chance.random() < 0.9
        try:
            async with asyncio.timeout(seconds), connected(self.port) as connection:
                await connection.send(post_json(path, given))
                if not reads:
                    await asyncio.sleep(chance.uniform(0, 5))
                return str((await connection.answer()).status)
        except TimeoutError:
            return "left"


async def measured(
    serving: Serving, load: Load, seconds: float, clients: int = CLIENTS
) -> Readings:
    """Read the memory of a server each second, while clients come and go."""
    readings, until = Readings(), time.monotonic() + seconds
    readings.bound = int(read_metrics(serving.addresses["metrics"])["memory_bound_bytes"])
    pid = serving.process.pid
    asking = [load.client(number, until, readings.statuses) for number in range(clients)]
    running = asyncio.gather(*asking)
    while not running.done():
        readings.resident.append(resident_bytes(pid))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), EACH)
    readings.peak = peak_bytes(pid)
    return readings


def peak_bytes(pid: int) -> int:
    """The largest resident memory of a process since it began, its loading included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) << 10


@contextmanager
def loaded(build: Path, *flags: str) -> Iterator[tuple[Serving, Load]]:
    """A server of a build, and the load for it."""
    facts = json.loads((build / "manifest.json").read_text())
    longest = facts["geometry"]["L_max"]
    with _served(build, *flags) as serving:
        yield serving, Load(serving.port, longest, facts["model"]["vocab_size"])


@contextmanager
def _served(build: Path, *flags: str) -> Iterator[Serving]:
    """A copy of a small build without a template gets one; others are served as they are."""
    if not (build / "chat_template.jinja").is_file():
        with served(build, *flags) as serving:
            yield serving
        return
    with TemporaryDirectory() as scratch, serve(build, Path(scratch), *flags) as serving:
        yield serving
