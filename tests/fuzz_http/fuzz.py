"""Sends hostile requests to a server, and says which answers are not as they must be.

    python -m tests.fuzz_http.fuzz BUILD --count 1000 --seed 0

Every answer is a success or OpenAI's error object, none has a status of 5xx, none takes as long as
100 plain requests (or 30 seconds), and the log has no traceback. Afterwards a plain request gets
the answer that it got before.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz_http.bodies import MODEL, Case, cases
from tests.fuzz_http.raw_client import COMPLETIONS, Answer, exchange, post_json
from tests.serving.process import Serving, serve

SECONDS = 30.0
"""No answer is late before this time."""
PLAIN_REQUESTS = 100
"""Afterwards it is late if as many plain requests would have been answered, one after the other."""
MOST_MESSAGE = 2000
"""Characters of an error's message: nobody is sent back what he sent."""
AT_ONCE = 4
PLAIN = post_json(
    COMPLETIONS, {"model": MODEL, "prompt": "The old", "max_tokens": 8, "temperature": 0}
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add %}+{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass
class Found:
    """What was sent, and what was wrong with the answers."""

    tried: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    slowest: float = 0.0


def problem(answer: Answer) -> str | None:
    """What is wrong with an answer, if anything is."""
    if answer.status >= 500:
        return f"status {answer.status}: {answer.body[:200]!r}"
    if answer.status == 0:
        return "closed without an answer"
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return _problem_of_stream(answer.body)
    try:
        value = answer.json
    except ValueError:
        return f"status {answer.status}, not JSON: {answer.body[:200]!r}"
    if answer.status == 200:
        is_known = not value.keys().isdisjoint(("object", "tokens", "prompt"))
        return None if is_known else f"no object: {answer.body[:200]!r}"
    return _problem_of_error(value)


def _problem_of_stream(body: bytes) -> str | None:
    events = [event for event in body.split(b"\n\n") if event and not event.startswith(b": ")]
    if not events or any(not event.startswith(b"data: ") for event in events):
        return f"not events: {body[:200]!r}"
    last = events[-1].removeprefix(b"data: ")
    return None if last == b"[DONE]" else _problem_of_error(json.loads(last))


def _problem_of_error(value: Any) -> str | None:
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or error.keys() != {"message", "type", "param", "code"}:
        return f"not OpenAI's error: {str(value)[:200]}"
    if len(error["message"]) > MOST_MESSAGE or len(error["param"] or "") > MOST_MESSAGE:
        return f"a message of {len(error['message'])} characters, param {len(error['param'] or '')}"
    return None


async def send_all(port: int, seed: int, count: int) -> Found:
    """Send the cases, some at once."""
    found, rest = Found(), cases(seed, count)

    async def worker() -> None:
        for case in rest:
            await _try(port, case, found)

    before = await exchange(port, PLAIN)
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    after = await exchange(port, PLAIN)
    if before.status != 200 or _text(before) != _text(after):
        found.wrong.append(("a plain request afterwards", f"{after.status} {after.body[:200]!r}"))
    return found


async def _try(port: int, case: Case, found: Found) -> None:
    started = time.monotonic()
    try:
        answer = await _answered(port, case)
    except (TimeoutError, OSError, ValueError) as error:
        wrong: str | None = f"no answer: {type(error).__name__} {error}"
    else:
        found.statuses[answer.status] += 1
        wrong = problem(answer) if answer.status or case.ends else None
    found.tried += 1
    found.slowest = max(found.slowest, time.monotonic() - started)
    if wrong:
        found.wrong.append((case.name, wrong))


async def _answered(port: int, case: Case) -> Answer:
    """The answer. Raises TimeoutError if it is late, on a machine as busy as it is by then."""
    started = time.monotonic()
    answer = asyncio.create_task(exchange(port, case.raw, ends=case.ends))
    while not (await asyncio.wait({answer}, timeout=SECONDS))[0]:
        probed = time.monotonic()
        await exchange(port, PLAIN)
        now = time.monotonic()
        if now - started > PLAIN_REQUESTS * (now - probed):
            answer.cancel()
            raise TimeoutError(f"a plain request took {now - probed:.1f} s at that time")
    return answer.result()


def _text(answer: Answer) -> str | None:
    return answer.json["choices"][0]["text"] if answer.status == 200 else None


@contextmanager
def served(build: Path, *flags: str) -> Iterator[Serving]:
    """A server of a copy of the build that takes chats."""
    with tempfile.TemporaryDirectory(prefix="fuzz-http-") as scratch:
        copy = Path(scratch) / "fuzzed.build"
        shutil.copytree(build, copy)
        (copy / "chat_template.jinja").write_text(TEMPLATE)
        with serve(copy, Path(scratch), *flags) as serving:
            yield serving


def run(build: Path, seed: int, count: int) -> dict[str, Any]:
    """Serve the build, and send it the cases."""
    with served(build) as serving:
        found = asyncio.run(send_all(serving.port, seed, count))
        status, log = serving.end()
    tracebacks = log.count("Traceback")
    if tracebacks or status:
        found.wrong.append(("the log", f"status {status}, {tracebacks} tracebacks: {log[-1500:]}"))
    return {
        "tried": found.tried,
        "failed": len(found.wrong),
        "statuses": dict(sorted(found.statuses.items())),
        "slowest_s": round(found.slowest, 2),
        "tracebacks": tracebacks,
        "wrong": found.wrong[:20],
    }


def parsed(description: str | None, **numbers: float) -> argparse.Namespace:
    """The build, and numbers with these defaults, from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("build", type=Path)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def main() -> int:
    arguments = parsed(__doc__, seed=0, count=1000)
    report = run(arguments.build, arguments.seed, arguments.count)
    for name, wrong in report.pop("wrong"):
        print(f"{name}: {wrong}", file=sys.stderr)
    print(json.dumps(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
