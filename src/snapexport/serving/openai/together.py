"""Several answers at once, in one stream: a body may ask for n of each of its prompts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from snapexport.runtime.requests import Request
from snapexport.serving.openai.pieces import Generator, Piece

AHEAD = 64
"""Pieces that may wait for a slow client before its requests are no longer read."""

Entry = tuple[int, Piece] | Exception


async def together(
    generator: Generator, requests: Sequence[Request]
) -> AsyncGenerator[tuple[int, Piece]]:
    """Index and piece of each request as they come, until all have ended.

    The first error ends all of them; so does leaving the stream early, by `aclose`.
    """
    entries: asyncio.Queue[Entry] = asyncio.Queue(AHEAD)
    tasks = [
        asyncio.create_task(_follow(generator, index, request, entries))
        for index, request in enumerate(requests)
    ]
    running = len(requests)
    try:
        while running:
            entry = await entries.get()
            if isinstance(entry, Exception):
                raise entry
            yield entry
            running -= entry[1].finish_reason is not None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(
    generator: Generator, index: int, request: Request, entries: asyncio.Queue[Entry]
) -> None:
    try:
        async with aclosing(generator.stream(request)) as pieces:
            async for piece in pieces:
                await entries.put((index, piece))
    except Exception as error:
        await entries.put(error)
