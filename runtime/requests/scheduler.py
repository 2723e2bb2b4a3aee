"""Schedules each step: which batch slots to decode, and which chunks to prefill.

Bookkeeping over prompt lengths and ended requests. Knows no executor, no text and no sampling.

A step has `max_num_batched_tokens`. Running requests take one each. The rest is credit for prefill:
a chunk costs `chunk` tokens, even if it is padded. Credit of less than a chunk is kept for later
steps, so that a long prompt is spread over several decode steps. If nothing runs, no request can be
stalled, and prefill starts at once. What a last chunk costs beyond its own tokens, as pseudo tokens
do, is debt, which later steps pay before they prefill again. A prompt that is repeated has further
chunks after its own, which cost as much.

Invariants
- A request is waiting, in prefill, running, kept or gone. From prefill on it holds one batch slot,
  which no other request holds, and which is free again as soon as the request is finished.
- At most one request is in prefill. Requests enter prefill in the order in which they were added.
- A running request may be extended: it pauses, and goes on when its blocks are done. They come
  before other prompts, and between the chunks of one, but not between the blocks of one: these
  share a row.
- The chunks of a prompt of length L are [0, C), [C, 2C) ... and a last one [L - C, L); one [0, L)
  where L <= C. Onto a compressed row they are blocks, which follow each other (`block_end`).
- A step takes no more than `max_num_batched_tokens`, or prefills no more than one chunk, apart from
  what follows a last chunk. On average over many steps the limit holds.
- A running request moves to a lower batch slot if all running requests then fit a smaller decode
  step. A request in prefill never moves.
- A request is decoded in every step from the one after its last chunk until it is finished or
  kept.
- A request that was prefilled elsewhere goes from waiting to running, before those that wait for
  prefill: its first token is overdue.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from snapexport.errors import UserError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens [start, end) of a request, to be prefilled for a batch slot.

    repeated: which chunk of the prompt's repetition it is, and no own one; None: it is an own one.
    """

    request_id: int
    slot: int
    start: int
    end: int
    is_last: bool
    repeated: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step: moves, decode, then adoptions and prefill: decode writes to idle slots too.

    moves: pairs of batch slots, from and to, in order. decode: the batch slot of each running
    request, after the moves. adopt: the batch slot of each request that was prefilled elsewhere and
    begins to run.
    """

    moves: tuple[tuple[int, int], ...]
    decode: dict[int, int]
    prefill: tuple[Chunk, ...]
    adopt: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Prefill:
    """in_blocks: onto a compressed row, which holds `done` tokens beforehand. behind: tokens that
    the last chunk costs beyond its own. repeats: chunks that follow, `repeated` of them done."""

    request_id: int
    prompt_length: int
    done: int
    in_blocks: bool
    behind: int = 0
    slot: int = -1
    repeats: int = 0
    repeated: int = 0


class Scheduler:
    """Verbs: `add` a request, `schedule` a step, `extend`, `keep` or `finish` a request."""

    def __init__(
        self,
        batch: int,
        chunk: int,
        max_num_batched_tokens: int | None = None,
        decode_batches: Sequence[int] = (),
        block_voters: int = 0,
    ) -> None:
        """Raise UserError for a limit that leaves nothing for prefill.

        batch: batch slots. chunk: tokens. max_num_batched_tokens: None for `chunk + batch`.
        decode_batches: those of `Limits`; if empty, every step runs all batch slots. block_voters:
        as in `Limits`.
        """
        self._chunk, self._voters = chunk, block_voters
        self._decode_batches = decode_batches or (batch,)
        most = chunk + batch if max_num_batched_tokens is None else max_num_batched_tokens
        if most <= batch:
            raise UserError(
                f"{most} tokens a step leave nothing for prefill beside {batch} batch slots",
                f"give each step {batch + 1} tokens or more",
            )
        self._most = most
        self._free = set(range(batch))
        self._waiting: deque[_Prefill] = deque()
        self._prefill: _Prefill | None = None
        self._extended: deque[_Prefill] = deque()
        self._prefilled: deque[int] = deque()
        self._running: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._credit = self._debt = 0

    def add(
        self,
        request_id: int,
        prompt_length: int,
        done: int = 0,
        in_blocks: bool = False,
        behind: int = 0,
        repeats: int = 0,
    ) -> None:
        """Queue a request behind all others.

        done: tokens of the row that it begins with. behind: tokens that its last chunk costs beyond
        its own. repeats: chunks in which its prompt is repeated.
        """
        queued = _Prefill(request_id, prompt_length, done, in_blocks, behind, repeats=repeats)
        self._waiting.append(queued)

    def add_prefilled(self, request_id: int) -> None:
        """Queue a request that was prefilled elsewhere."""
        self._prefilled.append(request_id)

    def extend(self, request_id: int, length: int, done: int) -> None:
        """Pause a running request for blocks of its tokens [done, length)."""
        slot = self._running.pop(request_id)
        self._extended.append(_Prefill(request_id, length, done, in_blocks=True, slot=slot))

    def schedule(self) -> Schedule:
        """Schedule one step and count it as done: the caller carries it out in full."""
        moves = tuple(self._moves_to_front())
        decode = dict(self._running)
        adopt = dict(self._adoptions())
        rest = self._pay(self._most - len(decode), decode)
        self._credit = rest if rest >= self._chunk else self._credit + rest
        chunks: list[Chunk] = []
        while (one := self._next()) and (self._credit >= self._chunk or not (decode or chunks)):
            chunks.append(self._chunk_of(one))
            self._credit = self._pay(max(0, self._credit - self._chunk), decode)
        if one is None:
            self._credit = 0
        return Schedule(moves, decode, tuple(chunks), adopt)

    def keep(self, request_id: int) -> None:
        """Decode a running request no more, and keep its batch slot until `finish`."""
        self._kept[request_id] = self._running.pop(request_id)

    def finish(self, request_id: int) -> None:
        """Forget a request in any state, and free its batch slot."""
        if self._prefill and self._prefill.request_id == request_id:
            self._free.add(self._prefill.slot)
            self._prefill = None
        elif paused := [one for one in self._extended if one.request_id == request_id]:
            self._extended.remove(paused[0])
            self._free.add(paused[0].slot)
        elif request_id in self._running:
            self._free.add(self._running.pop(request_id))
        elif request_id in self._kept:
            self._free.add(self._kept.pop(request_id))
        elif request_id in self._prefilled:
            self._prefilled.remove(request_id)
        else:
            self._waiting = deque(one for one in self._waiting if one.request_id != request_id)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: requests may wait for the slots of kept ones."""
        queued = bool(self._waiting or self._prefilled) and bool(self._free)
        return bool(queued or self._prefill or self._extended or self._running)

    @property
    def waiting(self) -> frozenset[int]:
        """Requests without a batch slot."""
        return frozenset((*(one.request_id for one in self._waiting), *self._prefilled))

    @property
    def slots_used(self) -> int:
        """Batch slots held by requests in prefill, running, paused or kept."""
        paused = len(self._extended) + (self._prefill is not None)
        return len(self._running) + len(self._kept) + paused

    def _pay(self, tokens: int, decode: dict[int, int]) -> int:
        """What paying the debt leaves of a step's tokens. Nobody is owed if nothing runs."""
        owed = self._debt if decode else 0
        self._debt = max(0, owed - tokens)
        return max(0, tokens - owed)

    def _moves_to_front(self) -> Iterator[tuple[int, int]]:
        """Move running requests to free lower slots if all of them then fit a smaller step."""
        size = min(size for size in self._decode_batches if size >= len(self._running))
        for request_id, slot in sorted(self._running.items(), key=lambda item: -item[1]):
            if slot < size or not self._free or (target := min(self._free)) >= size:
                return
            self._free.remove(target)
            self._free.add(slot)
            self._running[request_id] = target
            yield slot, target

    def _adoptions(self) -> Iterator[tuple[int, int]]:
        """Give free batch slots to requests that were prefilled elsewhere, in their order."""
        while self._prefilled and self._free:
            slot = min(self._free)
            self._free.remove(slot)
            request_id = self._prefilled.popleft()
            self._running[request_id] = slot
            yield request_id, slot

    def _next(self) -> _Prefill | None:
        """Whose chunk is next. If nobody is in prefill, the next request takes a free slot."""
        if self._extended and not (self._prefill and self._prefill.in_blocks):
            return self._extended[0]
        if self._prefill is None and self._waiting and self._free:
            self._prefill = self._waiting.popleft()
            self._prefill.slot = min(self._free)
            self._free.remove(self._prefill.slot)
        return self._prefill

    def _chunk_of(self, current: _Prefill) -> Chunk:
        length, repeated = current.prompt_length, None
        if current.repeats and current.done == length:
            start = end = length
            repeated = current.repeated
            current.repeated += 1
        elif current.in_blocks:
            start = current.done
            end = block_end(start, current.prompt_length, self._chunk, self._voters)
        else:
            end = min(current.done + self._chunk, current.prompt_length)
            start = max(0, end - self._chunk)
        current.done = end
        if is_last := end == length and current.repeated == current.repeats:
            self._debt += current.behind
            self._running[current.request_id] = current.slot
            if current is self._prefill:
                self._prefill = None
            else:
                self._extended.popleft()
        return Chunk(current.request_id, current.slot, start, end, is_last, repeated)


def block_end(start: int, end: int, chunk: int, voters: int) -> int:
    """Return the end of the block at `start` of a prompt that ends at `end`.

    The prompt's last `voters` tokens go behind each block but the last, which has them. So counted
    all blocks are equally long, up to one token: a short one would leave the vote to few.
    """
    if end - start <= chunk:
        return end
    blocks = -(-(end - voters - start) // (chunk - voters))
    return start + -(-(end - voters - start) // blocks)
