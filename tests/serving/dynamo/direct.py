"""Sends one request to a worker through Dynamo's runtime, and prints the answer as JSON."""

import asyncio
import json
import sys
from typing import Any

from dynamo.runtime import DistributedRuntime


async def ask(component: str, request: dict[str, Any]) -> dict[str, Any]:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    client = await runtime.endpoint(f"dynamo.{component}.generate").client()
    await asyncio.wait_for(client.wait_for_instances(), 20)
    try:
        chunks = [chunk.data() async for chunk in await client.generate(request)]
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        runtime.shutdown()
    return {"chunks": chunks}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(sys.argv[1], json.load(sys.stdin)))), flush=True)
