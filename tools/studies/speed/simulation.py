"""Simulates prefill workers, decode workers and the links between them, event by event.

Follows the rules of the runtime: a prefill worker has one prompt in work, and keeps a row until it
was fetched. A row lands beside the batch slots, and joins the batch between two steps. The times of
a prefill and of a decode step are given. Knows no model and no device.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is simulated. Seconds and bytes.

    prefill_rows: rows that a prefill worker holds, the one in prefill included. slots: batch slots
    of a decode worker; landing_rows: its rows on their way or waiting for a batch slot. link: bytes
    a second of each worker's link; a transfer has both ends' links to itself. row_seconds: of a row
    beside the link, such as messages. copy_seconds: from landing row to batch slot, between steps.
    step_seconds: of a decode step, by its active batch slots.
    """

    prefill: int
    decode: int
    prefill_seconds: float
    prefill_rows: int
    row_bytes: int
    link: float
    slots: int
    landing_rows: int
    step_seconds: Callable[[int], float]
    row_seconds: float = 0.0
    copy_seconds: float = 0.0

    @property
    def transfer_seconds(self) -> float:
        """A row's time on the link."""
        return self.row_bytes / self.link


@dataclass(slots=True)
class Request:
    """One request's times, in seconds from the start. first: its first token.

    prefill, decode: the workers' numbers.
    """

    arrived: float
    tokens: int
    began: float = math.nan
    prefilled: float = math.nan
    sent: float = math.nan
    landed: float = math.nan
    first: float = math.nan
    finished: float = math.nan
    prefill: int = 0
    decode: int = 0
    left: int = 0

    @property
    def ttft(self) -> float:
        return self.first - self.arrived


@dataclass(slots=True)
class _Prefill:
    busy: bool = False
    sending: bool = False
    rows: int = 0
    link_seconds: float = 0.0


@dataclass(slots=True)
class _Decode:
    receiving: bool = False
    landing: int = 0
    landed: deque[Request] = field(default_factory=deque)
    active: list[Request] = field(default_factory=list)
    began: float = 0.0
    steps: int = 0
    run: int = 0
    link_seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """requests: all of them, in the order of arrival. link_seconds: of the link in use most."""

    requests: list[Request]
    link_seconds: float

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token."""
        return max(one.finished for one in self.requests) - self.requests[0].arrived

    @property
    def link_occupancy(self) -> float:
        """The share of the time in which the busiest link is in use."""
        return self.link_seconds / self.seconds

    @property
    def steady_rate(self) -> float:
        """Requests a second between a quarter and three quarters of all: neither start nor end."""
        ends = sorted(one.finished for one in self.requests)
        early, late = len(ends) // 4, 3 * len(ends) // 4
        return (late - early) / (ends[late] - ends[early]) if late > early else math.nan


def simulate(cluster: Cluster, arrivals: Sequence[float], tokens: int) -> Outcome:
    """Run until the last of the requests has finished. arrivals: seconds, ascending."""
    return _Simulation(cluster, arrivals, tokens).run()


class _Simulation:
    def __init__(self, cluster: Cluster, arrivals: Sequence[float], tokens: int) -> None:
        self.cluster = cluster
        self.requests = [Request(at, tokens) for at in arrivals]
        self.prefills = [_Prefill() for _ in range(cluster.prefill)]
        self.decodes = [_Decode() for _ in range(cluster.decode)]
        self.waiting: deque[Request] = deque()
        self.told: list[Request] = []
        self.turn = count()
        self.order = count()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []

    def run(self) -> Outcome:
        for one in self.requests:
            self._at(one.arrived, self._arrival(one))
        while self.events:
            now, _, event = heapq.heappop(self.events)
            event(now)
        sending = [one.link_seconds for one in self.prefills]
        return Outcome(self.requests, max(sending + [one.link_seconds for one in self.decodes]))

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (time, next(self.order), event))

    def _arrival(self, one: Request) -> Callable[[float], None]:
        def event(now: float) -> None:
            self.waiting.append(one)
            self._prefill(now)

        return event

    def _prefill(self, now: float) -> None:
        """Begin what can begin: a worker needs a free row."""
        for index, worker in enumerate(self.prefills):
            if self.waiting and not worker.busy and worker.rows < self.cluster.prefill_rows:
                one = self.waiting.popleft()
                one.began, one.prefill = now, index
                worker.busy, worker.rows = True, worker.rows + 1
                self._at(now + self.cluster.prefill_seconds, self._prefilled(one))

    def _prefilled(self, one: Request) -> Callable[[float], None]:
        def event(now: float) -> None:
            one.prefilled = now
            self.prefills[one.prefill].busy = False
            one.decode = next(self.turn) % len(self.decodes)  # as Dynamo: in turn
            self._at(now + self.cluster.row_seconds, told)
            self._prefill(now)

        def told(now: float) -> None:
            self.told.append(one)
            self._send(now)

        return event

    def _send(self, now: float) -> None:
        """Begin each transfer whose links are both free, the longest waiting first."""
        kept = []
        for one in self.told:
            prefill, decode = self.prefills[one.prefill], self.decodes[one.decode]
            is_full = decode.landing == self.cluster.landing_rows
            if prefill.sending or decode.receiving or is_full:
                kept.append(one)
                continue
            prefill.sending = decode.receiving = True
            decode.landing += 1
            one.sent = now
            self._at(now + self.cluster.transfer_seconds, self._landed(one))
        self.told = kept

    def _landed(self, one: Request) -> Callable[[float], None]:
        def event(now: float) -> None:
            one.landed = now
            prefill, decode = self.prefills[one.prefill], self.decodes[one.decode]
            prefill.sending = decode.receiving = False
            prefill.rows -= 1
            prefill.link_seconds += self.cluster.transfer_seconds
            decode.link_seconds += self.cluster.transfer_seconds
            decode.landed.append(one)
            self._interrupt(decode, now)
            self._prefill(now)
            self._send(now)

        return event

    def _interrupt(self, decode: _Decode, now: float) -> None:
        """Let a landed row join at the next end of a step."""
        if not decode.active:
            self._join(decode, now)
        elif len(decode.active) < self.cluster.slots:
            step = self.cluster.step_seconds(len(decode.active))
            behind = max(0, math.ceil((now - decode.began) / step))
            if behind < decode.steps:
                self._decode(decode, behind)

    def _join(self, decode: _Decode, now: float) -> None:
        """Copy landed rows into free batch slots, and decode."""
        now = max(now, decode.began)
        while decode.landed and len(decode.active) < self.cluster.slots:
            one = decode.landed.popleft()
            self._at(now, self._freed(decode))
            now += self.cluster.copy_seconds
            one.first, one.left = now, one.tokens - 1
            if one.left:
                decode.active.append(one)
            else:
                one.finished = now
        decode.began = now
        if decode.active:
            self._decode(decode, min(one.left for one in decode.active))

    def _freed(self, decode: _Decode) -> Callable[[float], None]:
        """A landing row is free again when its copy begins."""

        def event(now: float) -> None:
            decode.landing -= 1
            self._send(now)

        return event

    def _decode(self, decode: _Decode, steps: int) -> None:
        """Run so many steps from `began` on; a later call takes an earlier one's place."""
        decode.run += 1
        run, decode.steps = decode.run, steps
        seconds = steps * self.cluster.step_seconds(len(decode.active))

        def event(now: float) -> None:
            if run == decode.run:
                self._stepped(decode, now)

        self._at(decode.began + seconds, event)

    def _stepped(self, decode: _Decode, now: float) -> None:
        for one in decode.active:
            one.left -= decode.steps
            if not one.left:
                one.finished = now
        decode.active = [one for one in decode.active if one.left]
        self._join(decode, now)
