"""Computes the bound of a server, and the queue that fits into a given memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from snapexport.contract.build_directory import Build
from snapexport.contract.memory import as_flag, spelled
from snapexport.errors import UserError, flag_of
from snapexport.runtime.engine.graph_set import GraphSet, PrefillForm
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.open_executor import default_backend
from snapexport.runtime.prompt_store.store import MOST_PENDING
from snapexport.runtime.requests.config import LLMConfig
from snapexport.runtime.requests.prompts import BYTES_PER_TOKEN, LEAST_BYTES
from snapexport.serving.memory.build import HELD, BuildMemory
from snapexport.serving.memory.parts import MOST_BYTES, MOST_BYTES_TOGETHER, MemoryBound, Part
from snapexport.serving.options import ServeOptions

_MIB = 1 << 20
_HELD_BODY = 4
"""Bytes of a body and of its text, at most, for each byte that arrives."""
_PARSED = 8
"""The same while it is parsed, one large body at a time."""
_TOKEN = 160
"""Bytes of a token in the lists of a request."""
_ANSWER = _MIB
"""Bytes of an answer that is not read yet."""
_CONNECTIONS = 32 * _MIB
_GRAMMARS, _GRAMMAR_OF_SLOT = 32 * _MIB, 2 * _MIB
_LOOSE, _LOOSE_SHARE = 40 * _MIB, 0.03
"""Memory that the allocator keeps though it is free, and its share of the rest."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Limits of requests. max_pending: that wait for a batch slot. body, bodies: bytes of one, and
    of all that arrive at once."""

    max_pending: int
    body: int = MOST_BYTES
    bodies: int = MOST_BYTES_TOGETHER


@dataclass(frozen=True)
class ServerMemory:
    """A build and the options of its server."""

    build: Build
    options: ServeOptions

    @property
    def is_bounded(self) -> bool:
        """Whether the backend runs on the CPU in one process; others have no bound."""
        device = self.options.device in (None, "CPU")
        return device and self._backend in HELD and self.build.manifest.tensor_parallel == 1

    def with_queue(self, queue: Queue) -> MemoryBound:
        """The bound with these limits of requests."""
        parts = [*self._of_build.parts(), *self._cache_files(), *self._of_requests(queue)]
        loose = _LOOSE + int(_LOOSE_SHARE * sum(part.nbytes for part in parts))
        return MemoryBound((*parts, Part("allocator", loose, "measured")))

    def queue(self, memory: int | None) -> Queue:
        """The largest queue that fits. memory: bytes; None: no limit. Raises UserError."""
        queues = [*self.queues()]
        if memory is None:
            return queues[0]
        if not self.is_bounded:
            raise UserError(
                "--memory bounds a build that one process runs on the CPU",
                "leave it out, or use --backend onnxruntime or openvino",
            )
        fitting = (one for one in queues if self.with_queue(one).nbytes <= memory)
        if found := next(fitting, None):
            return found
        raise self._refusal(memory, queues[-1])

    def queues(self) -> Iterator[Queue]:
        """The usual limits, and smaller ones.

        First of bodies, down to the longest prompt's, then of the queue.
        """
        yield Queue(self.options.max_pending)
        least = min(MOST_BYTES, 4 * self._text + LEAST_BYTES)
        bodies = MOST_BYTES_TOGETHER
        while (bodies := bodies // 2) > 2 * least:
            yield Queue(self.options.max_pending, max(least, min(MOST_BYTES, bodies // 4)), bodies)
        pending = self.options.max_pending
        yield Queue(pending, least, 2 * least)
        while pending:
            pending //= 2
            yield Queue(pending, least, 2 * least)

    def _refusal(self, memory: int, least: Queue) -> UserError:
        bound = self.with_queue(least)
        ways = [f"--memory {as_flag(bound.nbytes)}"]
        ways += self._with_less(memory, least)
        row, batch = self._of_build.row, self.build.manifest.batch
        if batch > 1:
            ways.append(f"a build with a smaller --batch, {spelled(row)} for each batch slot")
        ways.append("a build with a smaller --L-max")
        return UserError(
            f"{self.build.directory} does not fit into {spelled(memory)}: it takes up to {bound}",
            "what would: " + "; ".join(ways),
        )

    def _with_less(self, memory: int, least: Queue) -> Iterator[str]:
        """Other values of options that keep something for later prompts."""
        less: dict[str, Any] = {"parked_rows": 0, "prompt_cache": None}
        for name, value in less.items():
            if not getattr(self.options, name):
                continue
            without = ServerMemory(self.build, replace(self.options, **{name: value}))
            taken = without.with_queue(least).nbytes
            flag = flag_of(name)
            yield f"--memory {as_flag(taken)} without {flag}"
            of_row = int(self._of_build.row * (1 + _LOOSE_SHARE)) * (
                2 if self.options.parked_dir else 1
            )
            if name == "parked_rows" and (rows := (memory - taken) // of_row - 1) > 0:
                yield f"{flag} {rows}"

    @property
    def _backend(self) -> str:
        return self.options.backend or default_backend(self.build)

    @property
    def _of_build(self) -> BuildMemory:
        options, manifest = self.options, self.build.manifest
        config = LLMConfig(parked_rows=options.parked_rows, compress_every=options.compress_every)
        form: PrefillForm = "both" if config.extends_rows else "chunks"
        graphs = GraphSet.of(self.build, baseline=False, form=form, speculates=options.speculates)
        steps = frozenset[str]()
        if self._backend == "openvino" and manifest.holds_integers:
            steps = frozenset((*graphs.decode.values(), *graphs.verify.values()))
        return BuildMemory(self.build, self._backend, graphs.names, steps)

    @property
    def _limits(self) -> Limits:
        return Limits.of(self.build.manifest, full_cache=False)

    @property
    def _text(self) -> int:
        """Bytes of the longest prompt's text."""
        return max(LEAST_BYTES, self._limits.longest_prompt * BYTES_PER_TOKEN)

    def _cache_files(self) -> Iterator[Part]:
        options, row = self.options, self._of_build.row
        rows = options.parked_rows + 1 if options.parked_rows else 0
        rows *= 2 if options.parked_dir else 1  # those that are written
        rows += 2 if options.compress_every else 0
        yield Part("parked rows", rows * row, "exact")
        yield Part("prompts to be written", MOST_PENDING * bool(options.prompt_cache), "limit")

    def _of_requests(self, queue: Queue) -> Iterator[Part]:
        batch = self.build.manifest.batch
        inside = batch + queue.max_pending
        one = 2 * self._text + self._limits.longest_prompt * _TOKEN + _ANSWER
        yield Part("requests", inside * one, "limit")
        bodies = _HELD_BODY * queue.bodies + _PARSED * queue.body
        yield Part("bodies", bodies, "limit")
        yield Part("connections", _CONNECTIONS, "limit")
        yield Part("grammars", _GRAMMARS + batch * _GRAMMAR_OF_SLOT, "limit")
