"""Who is worked on next: static slots, a queue, and a budget of tokens for each step.

Pure bookkeeping. Knows no engine, no text and no sampling: it hears of a prompt's length and of a
request's end, and says which chunks to prefill and which slots to decode.

A step's budget is spent on the running requests first (one token each). What remains is credit for
prefill chunks (`chunk` tokens each, because a padded chunk costs what a full one does). Where it is
less than a chunk it adds up over steps, so that a small budget spreads a long prompt over several
decode steps. With nothing running there is nobody to stall, and prefill goes at once.

Invariants
- A request is waiting, in prefill, running or gone. Those in prefill or running hold a slot, and no
  others; no slot is held twice; a slot is free again the moment its request is finished.
- At most one request is in prefill. Requests enter prefill in the order in which they were added.
- The chunks of a prompt of length L are [0, C), [C, 2C) ... and a last one [L - C, L); one [0, L)
  where L <= C.
- A step spends no more than its budget, or on prefill no more than one chunk; over many steps the
  budget holds on average.
- A running request moves to a lower slot where a smaller decode step holds all that run then; what
  is in prefill never moves.
- A request is decoded from the step after its last chunk on, in every step until it is finished.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from snapexport.contract.errors import UserError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens [start, end) of a request, to be prefilled for a slot."""

    request_id: int
    slot: int
    start: int
    end: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: moves, decode, then prefill, because decode writes to idle slots too."""

    moves: tuple[tuple[int, int], ...]
    """Slots of running requests, from and to, in order: `decode` has the new ones."""
    decode: dict[int, int]
    """Slot of each running request."""
    prefill: tuple[Chunk, ...]


@dataclass(slots=True)
class _Prefill:
    request_id: int
    prompt_length: int
    slot: int
    done: int = 0


class Scheduler:
    """Three verbs: `add` a request, `schedule` a step, `finish` a request."""

    def __init__(
        self,
        batch: int,
        chunk: int,
        budget: int | None = None,
        decode_batches: Sequence[int] = (),
    ) -> None:
        """decode_batches: as `Limits` has them; none: every step runs all slots."""
        self._chunk = chunk
        self._decode_batches = decode_batches or (batch,)
        self._budget = chunk + batch if budget is None else budget
        if self._budget <= batch:
            raise UserError(
                f"a budget of {budget} tokens leaves nothing for prefill beside {batch} slots",
                f"give each step {batch + 1} tokens or more",
            )
        self._free = set(range(batch))
        self._waiting: deque[tuple[int, int]] = deque()
        self._prefill: _Prefill | None = None
        self._running: dict[int, int] = {}
        self._credit = 0

    def add(self, request_id: int, prompt_length: int) -> None:
        """Queue a request behind all others."""
        self._waiting.append((request_id, prompt_length))

    def schedule(self) -> Plan:
        """Plan one step, and take it as done: the caller carries it out in full."""
        moves = tuple(self._moves_to_front())
        decode = dict(self._running)
        rest = self._budget - len(decode)
        self._credit = rest if rest >= self._chunk else self._credit + rest
        chunks: list[Chunk] = []
        while self._begin_prefill() and (self._credit >= self._chunk or not (decode or chunks)):
            self._credit = max(0, self._credit - self._chunk)
            chunks.append(self._next_chunk())
        if self._prefill is None:
            self._credit = 0
        return Plan(moves, decode, tuple(chunks))

    def finish(self, request_id: int) -> None:
        """Forget a request that ended or was cancelled, wherever it is, and free its slot."""
        if self._prefill and self._prefill.request_id == request_id:
            self._free.add(self._prefill.slot)
            self._prefill = None
        elif request_id in self._running:
            self._free.add(self._running.pop(request_id))
        else:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != request_id)

    @property
    def busy(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._waiting or self._prefill or self._running)

    @property
    def waiting(self) -> frozenset[int]:
        """Requests without a slot."""
        return frozenset(request_id for request_id, _ in self._waiting)

    @property
    def slots_used(self) -> int:
        """Slots that a request in prefill or running holds."""
        return len(self._running) + (self._prefill is not None)

    def _moves_to_front(self) -> Iterator[tuple[int, int]]:
        """Fill the gaps that keep all that runs out of a smaller decode step."""
        size = min(size for size in self._decode_batches if size >= len(self._running))
        for request_id, slot in sorted(self._running.items(), key=lambda item: -item[1]):
            if slot < size or not self._free or (target := min(self._free)) >= size:
                return
            self._free.remove(target)
            self._free.add(slot)
            self._running[request_id] = target
            yield slot, target

    def _begin_prefill(self) -> bool:
        """Move the next request to a free slot if none is in prefill; say whether one is now."""
        if self._prefill is None and self._waiting and self._free:
            slot = min(self._free)
            self._free.remove(slot)
            self._prefill = _Prefill(*self._waiting.popleft(), slot)
        return self._prefill is not None

    def _next_chunk(self) -> Chunk:
        current = self._prefill
        assert current is not None
        end = min(current.done + self._chunk, current.prompt_length)
        start = max(0, end - self._chunk)
        current.done = end
        if is_last := end == current.prompt_length:
            self._running[current.request_id] = current.slot
            self._prefill = None
        return Chunk(current.request_id, current.slot, start, end, is_last)
