"""Opens idle connections, and asks whether new clients and running streams are still served.

python -m tests.fuzz_http.idle BUILD --connections 2000
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from snapexport.serving.openai.http.connections import LEAST_SECONDS
from tests.fuzz_http.fuzz import PLAIN, parsed, served
from tests.fuzz_http.raw_client import connected, exchange
from tests.fuzz_http.stall import streaming

BEGINNINGS = (b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
NEW_CLIENTS = 20


async def measure(port: int, count: int) -> dict[str, Any]:
    """How many of 20 new clients are served beside idle connections, and the slowest's time."""
    async with streaming(port) as gaps, AsyncExitStack() as stack:
        gaps.begin()
        for index in range(count):
            connection = await stack.enter_async_context(connected(port))
            await connection.send(BEGINNINGS[index % len(BEGINNINGS)])
        await asyncio.sleep(LEAST_SECONDS)  # none gives way sooner
        served, slowest = 0, 0.0
        for _ in range(NEW_CLIENTS):
            started = time.monotonic()
            try:
                served += (await exchange(port, PLAIN)).status == 200
            except (TimeoutError, OSError):
                continue
            finally:
                slowest = max(slowest, time.monotonic() - started)
        return {
            "idle": count,
            "new_clients": NEW_CLIENTS,
            "served": served,
            "slowest_s": round(slowest, 3),
            "longest_gap_of_streams_s": round(gaps.longest, 3),
        }


def main() -> int:
    arguments = parsed(__doc__, connections=2000)
    with served(arguments.build) as serving:
        report = asyncio.run(measure(serving.port, arguments.connections))
    print(json.dumps(report))
    return 0 if report["served"] == NEW_CLIENTS else 1


if __name__ == "__main__":
    sys.exit(main())
