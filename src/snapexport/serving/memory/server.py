"""Holds one server to its bound: before the build is loaded, once it is, and while it serves."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from snapexport.contract.build_directory import Build
from snapexport.contract.memory import as_flag, spelled
from snapexport.errors import UserError
from snapexport.serving.memory import process
from snapexport.serving.memory.bound import Queue, ServerMemory
from snapexport.serving.memory.parts import MemoryBound, Part
from snapexport.serving.memory.watch import Watch
from snapexport.serving.model import Model, touch_caches
from snapexport.serving.options import ServeOptions


@dataclass
class BoundedServer:
    """options: with the queue that fits. bound: None on a backend that has none."""

    options: ServeOptions
    queue: Queue
    bound: MemoryBound | None

    @classmethod
    def of(cls, options: ServeOptions) -> "BoundedServer":
        """Loads nothing. Raises UserError for a build that can't fit into `options.memory`."""
        server = ServerMemory(Build.open(options.build), options)
        queue = server.queue(options.memory)
        bound = server.with_queue(queue) if server.is_bounded else None
        if bound and options.memory:
            bound = bound.within(options.memory)
        return cls(replace(options, max_pending=queue.max_pending), queue, bound)

    def begin(self) -> None:
        """Prepare the process, before the build is loaded."""
        if self.options.memory:
            process.limit_arenas()

    def settle(self, model: Model) -> None:
        """Compare the loaded build, every graph of which has run, with what was counted.

        Raises UserError if requests would not fit into `options.memory` beside it.
        """
        if self.bound is None:
            return
        if self.options.memory:
            touch_caches(model.llm)
            process.trim()
        left = sum(part.nbytes for part in self.bound.parts if part.name == "left")
        needed = process.resident_bytes() + self.bound.of_requests - left
        if (beyond := needed - self.bound.nbytes) > 0:
            if self.options.memory:
                raise UserError(
                    f"{self.options.build} takes {spelled(needed)}, with its requests, and not "
                    f"{spelled(self.bound.nbytes - left)} as was counted",
                    f"use --memory {as_flag(needed)}",
                )
            self.bound = replace(self.bound, parts=(*self.bound.parts, _further(beyond)))
        model.memory_bound = self.bound.nbytes

    def watch(self, model: Model) -> Coroutine[Any, Any, Any]:
        """Watch the memory where it has a bound that was asked for; else wait."""
        if not self.options.memory:
            return asyncio.Event().wait()
        watch = Watch(self.options.memory, model.streams.worker)
        model.admits = watch.admits
        return watch.run()


def _further(nbytes: int) -> Part:
    return Part("beyond what was counted", nbytes, "measured")
