"""Continuous batching: carries out the scheduler's plans on an engine.

Knows neither prompts as text nor callers. Not thread-safe: one thread steps, submits and cancels.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.runtime.executor import Executor
from snapexport.runtime.generation import Generation
from snapexport.runtime.predictions import Prediction
from snapexport.runtime.requests import OutputDelta, Request
from snapexport.runtime.sampling import can_sample
from snapexport.runtime.scheduler import Chunk, Plan, Scheduler


class Loop:
    """Requests on one engine. A request is live from `submit` to its last delta."""

    def __init__(self, engine: Executor, tokenizer: Tokenizer | None, budget: int | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._limits = engine.limits
        self._scheduler = Scheduler(
            self._limits.batch, self._limits.prefill_chunk, budget, self._limits.decode_batches
        )
        self._live: dict[int, Generation] = {}
        self._ids = count()

    def submit(self, request: Request) -> int:
        """Queue a request; the returned id is on its deltas."""
        request_id = next(self._ids)
        self._live[request_id] = Generation(request_id, request, self._limits, self._tokenizer)
        self._scheduler.add(request_id, len(request.prompt_token_ids))
        return request_id

    def cancel(self, request_id: int) -> OutputDelta | None:
        """End a request now. None if it had ended before."""
        if request_id not in self._live:
            return None
        self._forget(request_id)
        return OutputDelta(request_id, "", (), "cancelled")

    def step(self) -> list[OutputDelta]:
        """Decode every running request once, and prefill as far as the budget goes.

        A request whose logits are no numbers ends with "error", and its neighbours go on. An
        exception of the engine ends those that it was working for, and is on their deltas: the
        plan counts as done, so that what a failed call left out must not be built upon.
        """
        plan = self._scheduler.schedule()
        deltas = self._decode(plan)
        for chunk in plan.prefill:
            deltas += self._prefill(chunk)
        return deltas

    @property
    def busy(self) -> bool:
        """Whether any request is live."""
        return bool(self._live)

    @property
    def waiting(self) -> frozenset[int]:
        """Live requests without a slot."""
        return self._scheduler.waiting

    @property
    def slots_used(self) -> int:
        """Slots that a live request holds."""
        return self._scheduler.slots_used

    def _decode(self, plan: Plan) -> list[OutputDelta]:
        slots = plan.decode
        if not slots:
            return []
        try:
            for source, target in plan.moves:
                self._engine.move(source, target)
            said = self._engine.decode(*self._inputs(slots))
        except Exception as error:
            return [self._fail(request_id, slot, error) for request_id, slot in slots.items()]
        return [self._sample(request_id, slot, said[slot]) for request_id, slot in slots.items()]

    def _inputs(self, slots: Mapping[int, int]) -> tuple[NDArray[Any], ...]:
        """Token, position, prompt length and temperature of each slot up to the last in use."""
        inputs = np.zeros((3, max(slots.values()) + 1), np.int64)
        temperatures = np.ones(inputs.shape[1], np.float32)
        for request_id, slot in slots.items():
            live = self._live[request_id]
            inputs[:, slot] = live.last_token, live.position, len(live.prompt_token_ids)
            temperatures[slot] = live.temperature
        return *inputs, temperatures

    def _prefill(self, chunk: Chunk) -> list[OutputDelta]:
        if chunk.request_id not in self._live:
            return []
        live = self._live[chunk.request_id]
        prompt, tokens = live.prompt_token_ids, live.prompt_token_ids[chunk.start : chunk.end]
        try:
            said = self._engine.prefill(
                chunk.slot, tokens, chunk.start, len(prompt), live.temperature
            )
        except Exception as error:
            return [self._fail(chunk.request_id, chunk.slot, error)]
        # A broken chunk ends its request at once: cancelled later, it would leave its NaN behind.
        if chunk.is_last or not can_sample(said):
            return [self._sample(chunk.request_id, chunk.slot, said)]
        return []

    def _sample(self, request_id: int, slot: int, said: Prediction) -> OutputDelta:
        try:
            delta = self._live[request_id].advance(said)
        except Exception as error:  # of the engine: logits may have to be fetched
            return self._fail(request_id, slot, error)
        if delta.finish_reason:
            self._forget(request_id)
        if delta.finish_reason == "error":
            self._engine.clear(slot)
        return delta

    def _fail(self, request_id: int, slot: int, error: Exception) -> OutputDelta:
        """End a request for an exception of the engine, whose caches may hold anything now."""
        self._forget(request_id)
        with suppress(Exception):  # an engine that is broken for good can't clear either
            self._engine.clear(slot)
        return OutputDelta(request_id, "", (), "error", exception=error)

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]
        self._scheduler.finish(request_id)
