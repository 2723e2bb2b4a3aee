"""Schedules each step: which batch slots to decode, and which pieces of prompts to take.

Bookkeeping over costs, order and batch slots. Knows no executor, no text and no sampling, and of a
piece neither its kind nor its tokens.

A step has `max_num_batched_tokens`. Running requests take one each. The rest is credit for prefill.
Credit of less than a chunk is kept for later steps, so that a long prompt is spread over several
decode steps. A piece goes if there is credit for it, or for a chunk where it costs more: the credit
is then negative, a debt that later steps pay before they prefill again. If nothing runs, no request
can be stalled, and prefill starts at once.

Invariants
- A request is waiting, in prefill, running, paused, kept or gone. From prefill on it holds one
  batch slot, which no other request holds, and which is free again as soon as the request is
  finished.
- At most one request is in prefill. Requests enter prefill in the order in which they were added.
- A running request may be extended: it pauses, and goes on when its pieces are done. They come
  before other prompts, and between the pieces of one, but not between those that keep a row.
- The pieces of a request go in their order. A joined one goes in the step of the one before it.
- A step takes no more than `max_num_batched_tokens`, or prefills no more than one piece and what
  is joined to it. On average over many steps the limit holds.
- A running request moves to a lower batch slot if all running requests then fit a smaller decode
  step. A request in prefill never moves.
- A request is decoded in every step from the one after its last piece until it is finished or
  kept.
- A request that was prefilled elsewhere goes from waiting to running, before those that wait for
  prefill: its first token is overdue.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from snapexport.contract.pieces import Piece
from snapexport.errors import UserError


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of a request's prompt, to be taken for a batch slot."""

    request_id: int
    slot: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step: moves, decode, then adoptions and prefill: decode writes to idle slots too.

    moves: pairs of batch slots, from and to, in order. decode: the batch slot of each running
    request, after the moves. adopt: the batch slot of each request that was prefilled elsewhere and
    begins to run.
    """

    moves: tuple[tuple[int, int], ...]
    decode: dict[int, int]
    prefill: tuple[Work, ...]
    adopt: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Prefill:
    """A request's pieces that are left, and the batch slot that it holds or will hold."""

    request_id: int
    pieces: deque[Piece]
    slot: int = -1


class Scheduler:
    """Verbs: `add` a request, `schedule` a step, `skip` pieces, `extend`, `keep` or `finish` a
    request."""

    def __init__(
        self,
        batch: int,
        chunk: int,
        max_num_batched_tokens: int | None = None,
        decode_batches: Sequence[int] = (),
    ) -> None:
        """Raise UserError for a limit that leaves nothing for prefill.

        batch: batch slots. chunk: tokens. max_num_batched_tokens: None for `chunk + batch`.
        decode_batches: those of `Limits`; if empty, every step runs all batch slots.
        """
        self._chunk = chunk
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
        self._credit = 0

    def add(self, request_id: int, pieces: Sequence[Piece]) -> None:
        """Queue a request after all others, with the work of its prompt."""
        self._waiting.append(_Prefill(request_id, deque(pieces)))

    def add_prefilled(self, request_id: int) -> None:
        """Queue a request that was prefilled elsewhere."""
        self._prefilled.append(request_id)

    def extend(self, request_id: int, pieces: Sequence[Piece]) -> None:
        """Pause a running request for further work of its own."""
        slot = self._running.pop(request_id)
        self._extended.append(_Prefill(request_id, deque(pieces), slot))

    def skip(self, request_id: int, is_done: Callable[[Piece], bool]) -> None:
        """Leave out the next pieces of the request in prefill that are done already; not its last.

        They cost nothing.
        """
        current = self._prefill
        while current and current.request_id == request_id and len(current.pieces) > 1:
            if not is_done(current.pieces[0]):
                return
            current.pieces.popleft()

    def schedule(self) -> Schedule:
        """Schedule one step and count it as done: the caller carries it out in full."""
        moves = tuple(self._moves_to_front())
        decode = dict(self._running)
        adopt = dict(self._adoptions())
        self._earn(self._most - len(decode), bool(decode))
        work: list[Work] = []
        while (current := self._next()) and (
            self._affords(current.pieces[0]) or not (decode or work)
        ):
            work += self._take_pieces(current, bool(decode))
        if current is None:
            self._credit = min(0, self._credit)
        return Schedule(moves, decode, tuple(work), adopt)

    def keep(self, request_id: int) -> None:
        """Decode a running request no more, and keep its batch slot until `finish`."""
        self._kept[request_id] = self._running.pop(request_id)

    def finish(self, request_id: int) -> None:
        """Forget a request in any state, and free its batch slot."""
        if self._prefill and self._prefill.request_id == request_id:
            self._free.add(self._prefill.slot)
            self._prefill = None
        elif paused := [queued for queued in self._extended if queued.request_id == request_id]:
            self._extended.remove(paused[0])
            self._free.add(paused[0].slot)
        elif request_id in self._running:
            self._free.add(self._running.pop(request_id))
        elif request_id in self._kept:
            self._free.add(self._kept.pop(request_id))
        elif request_id in self._prefilled:
            self._prefilled.remove(request_id)
        else:
            self._waiting = deque(p for p in self._waiting if p.request_id != request_id)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: requests may wait for the slots of kept ones."""
        queued = bool(self._waiting or self._prefilled) and bool(self._free)
        return bool(queued or self._prefill or self._extended or self._running)

    @property
    def waiting(self) -> frozenset[int]:
        """Requests without a batch slot."""
        return frozenset((*(queued.request_id for queued in self._waiting), *self._prefilled))

    @property
    def slots_used(self) -> int:
        """Batch slots held by requests in prefill, running, paused or kept."""
        paused = len(self._extended) + (self._prefill is not None)
        return len(self._running) + len(self._kept) + paused

    def _earn(self, tokens: int, runs: bool) -> None:
        """Add a step's tokens to the credit. Nothing is owed if no request runs."""
        credit = self._credit if runs else max(0, self._credit)
        self._credit = tokens if credit >= 0 and tokens >= self._chunk else credit + tokens

    def _affords(self, piece: Piece) -> bool:
        return self._credit >= min(piece.cost, self._chunk)

    def _pay(self, piece: Piece, runs: bool) -> None:
        """A debt is owed to running requests, whose steps it delays."""
        if runs:
            self._credit -= piece.cost
        elif not piece.joined:
            self._credit = max(0, self._credit - piece.cost)

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
        """Whose piece is next. If nobody is in prefill, the next request takes a free slot."""
        if self._extended and not (self._prefill and self._prefill.pieces[0].keeps_row):
            return self._extended[0]
        if self._prefill is None and self._waiting and self._free:
            self._prefill = self._waiting.popleft()
            self._prefill.slot = min(self._free)
            self._free.remove(self._prefill.slot)
        return self._prefill

    def _take_pieces(self, current: _Prefill, runs: bool) -> Iterator[Work]:
        """The next piece, and those that are joined to it. runs: whether any request does."""
        is_joined = True
        while is_joined:
            piece = current.pieces.popleft()
            self._pay(piece, runs)
            yield Work(current.request_id, current.slot, piece)
            is_joined = bool(current.pieces) and current.pieces[0].joined
        if not current.pieces:
            self._run(current)

    def _run(self, prefilled: _Prefill) -> None:
        """Its last piece is scheduled: it is decoded from the next step on."""
        self._running[prefilled.request_id] = prefilled.slot
        if prefilled is self._prefill:
            self._prefill = None
        else:
            self._extended.popleft()
