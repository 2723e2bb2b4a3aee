"""Starts prompts from kept chunks, and keeps those that are computed.

A prompt's chunks run from border to border, but for its end, which is always computed: what is
taken from the store is what a fresh prefill would write, to the bit. Knows no request, no batch
slot and no file.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from snapexport.contract.pieces import Prefill
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.prompt_store.chunk_file import Chunk, keys
from snapexport.runtime.prompt_store.store import ChunkStore, used_at


class PromptKeeper:
    """Ties the prompt cache in memory to a store of chunks. Follows one prompt at a time."""

    def __init__(self, cache: PromptCache, prefill: Prefill, store: ChunkStore) -> None:
        self._cache, self._prefill, self._store = cache, prefill, store
        self._counts: Counter[str] = Counter()
        self._prompt: Sequence[int] = ()
        self._keys: list[str] = []
        self._began = 0

    def begin(self, prompt: Sequence[int], salt: str) -> int:
        """Take what is kept of a prompt's beginning into the prompt cache; its tokens.

        They need no run. salt: only chunks of prompts of the same one are taken.
        """
        size = self._prefill.chunk
        count = self._prefill.whole_chunks(len(prompt))
        self._prompt, self._began = prompt, time.time_ns()
        self._keys = keys(self._store.build, salt, prompt, size, count)
        done = self._cache.enter(prompt[: count * size])
        taken = 0
        for index, key in enumerate(self._keys):
            if not (self._store.has(key) if index < done else self._take(index)):
                break
            taken = index + 1
        if taken:
            self._store.use(self._keys[:taken], self._began)
            self._counts["hits"] += 1
            self._counts["tokens"] += taken * size
        return taken * size

    def took(self, start: int, end: int) -> None:
        """Keep the chunk that was taken last, if it is a whole one from border to border."""
        index, rest = divmod(start, self._prefill.chunk)
        if rest or end - start != self._prefill.chunk or index >= len(self._keys):
            return
        if not self._store.has(self._keys[index]):
            chunk = self._chunk(index)
            self._store.keep(
                Chunk(chunk.key, chunk.build, index, chunk.token_ids, self._cache.read(index)),
                used_at(self._began, index),
            )

    @property
    def values(self) -> Mapping[str, int]:
        """Counts and bytes, by what they count. Any thread may read them."""
        folder = self._store.folder
        return {
            "hits": self._counts["hits"],
            "tokens": self._counts["tokens"],
            "bytes": folder.nbytes,
            "evicted": folder.evicted,
            "dropped": self._store.counts["dropped"],
        }

    def close(self) -> None:
        """Wait until all chunks are written."""
        self._store.close()

    def _take(self, index: int) -> bool:
        """Take a chunk from the store into the prompt cache, after those before it."""
        chunk = self._chunk(index)
        if not self._store.has(chunk.key):
            return False
        parts = self._store.read(chunk, self._cache.specs(index))
        if parts is None:
            return False
        self._cache.write(index, chunk.token_ids, parts)
        return True

    def _chunk(self, index: int) -> Chunk:
        """A chunk of the prompt, without its parts."""
        size = self._prefill.chunk
        tokens = tuple(self._prompt[index * size : (index + 1) * size])
        return Chunk(self._keys[index], self._store.build, index, tokens, {})
