"""Runs work in a few threads of its own: slow work of one route delays no other route."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from snapexport.serving.openai.errors import ApiError

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Turns:
    """Threads, and a bounded queue for them."""

    def __init__(self, threads: int, most: int) -> None:
        """most: runs and waits at the same time; more is refused."""
        self._threads = ThreadPoolExecutor(threads, "snapexport-turns")
        self._most = most
        self._inside = 0

    async def run(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """The result of the work. Raises ApiError if too much waits already."""
        if self._inside >= self._most:
            message = f"{self._most} requests are read already: try again later"
            raise ApiError(503, message, code="unavailable")
        self._inside += 1
        try:
            running = self._threads.submit(work, *args, **kwargs)
            return await asyncio.wrap_future(running)
        finally:
            self._inside -= 1
