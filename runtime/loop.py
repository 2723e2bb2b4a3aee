"""Runs continuous batching: carries out the scheduler's steps on an executor.

Knows neither prompts as text nor callers. Not thread-safe: one thread steps, submits and cancels.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.runtime.executor import Executor
from snapexport.runtime.generation import Generation
from snapexport.runtime.parked_rows import ParkedRows
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.requests import OutputDelta, Request
from snapexport.runtime.sampling import can_sample
from snapexport.runtime.scheduler import Chunk, Schedule, Scheduler
from snapexport.runtime.speculation import StepTimes


class Loop:
    """Requests on one executor. A request is live from `submit` to its last delta."""

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        max_num_batched_tokens: int | None,
        parked: ParkedRows | None = None,
        speculates: bool = True,
        compress_every: int = 0,
    ) -> None:
        """parked: prompts' rows, which are kept for prompts that begin with them.

        speculates: guess tokens ahead, where the executor can check several. compress_every: tokens
        of an output after which its batch slot is compressed again; 0: never.
        """
        self._executor = executor
        self._tokenizer = tokenizer
        limits = self._limits = executor.limits
        self._scheduler = Scheduler(
            limits.batch, limits.prefill_chunk, max_num_batched_tokens, limits.decode_batches
        )
        self._parked = parked
        self._most_drafted = limits.tokens_per_step - 1 if speculates else 0
        self._compress_every = compress_every
        self._times = StepTimes()
        self._live: dict[int, Generation] = {}
        self._ids = count()

    def submit(self, request: Request) -> int:
        """Queue a request; its deltas carry the returned id. Raises UserError for a foreign row."""
        self._require_hand_over(request)
        request_id = next(self._ids)
        live = Generation(request_id, request, self._limits, self._tokenizer)
        self._live[request_id] = live
        if request.prefilled:
            self._scheduler.add_prefilled(request_id)
        else:
            self._add(request_id, live)
        return request_id

    def _add(self, request_id: int, live: Generation) -> None:
        """Queue it for prefill: of the whole prompt, or of what follows a parked row."""
        prompt = live.prompt_token_ids
        too_long = len(prompt) > self._limits.longest_prefill
        # A row that saves no chunk is worse than prefill, which sees all of the prompt.
        least = 1 if too_long else (len(prompt) - 1) % self._limits.prefill_chunk + 1
        live.parked = self._parked.find(prompt, least) if self._parked else None
        live.in_blocks = bool(live.parked) or too_long
        live.prefilled = len(live.parked.token_ids) if live.parked else 0
        limits, count = self._limits, len(prompt)
        after = (0, 0) if live.in_blocks else (limits.behind(count), limits.repeated_chunks(count))
        self._scheduler.add(request_id, count, live.prefilled, live.in_blocks, *after)

    def _require_hand_over(self, request: Request) -> None:
        if request.hand_over and self._executor.role != "prefill":
            raise UserError(  # decode writes to kept batch slots, too
                "a prompt can't be handed over by an executor that decodes",
                'open the build with role="prefill"',
            )
        if request.prefilled is None:
            return
        row, length = request.prefilled.row, len(request.prompt_token_ids)
        self._executor.require_adoptable(row)
        if not row.prompt_length == row.next_position == length:
            raise UserError(
                f"the row holds {row.next_position} positions, the request's prompt {length}",
                "hand over the row of this prompt, before it is decoded",
            )

    def cancel(self, request_id: int) -> OutputDelta | None:
        """End a request now. None if it had ended before."""
        if request_id not in self._live:
            return None
        self._forget(request_id)
        return OutputDelta(request_id, "", (), "cancelled")

    def step(self) -> list[OutputDelta]:
        """Decode every running request once, and prefill the scheduled chunks.

        A request whose logits are not finite ends with "error"; its neighbours go on. An exception
        of the executor is on the last deltas of the requests in that call, which end: the schedule
        counts as done, and nothing can go on from work that failed.
        """
        self._extend_rows()
        schedule = self._scheduler.schedule()
        deltas = self._decode(schedule)
        deltas += [self._adopt(request_id, slot) for request_id, slot in schedule.adopt.items()]
        for chunk in schedule.prefill:
            deltas += self._prefill(chunk)
        return deltas

    def _extend_rows(self) -> None:
        """Pause the running requests whose output has grown enough, to compress them again.

        Each goes on from the row of its latest compression. It always has the same number of new
        tokens: neither neighbours nor drafts decide what is kept.
        """
        for request_id, live in self._live.items():
            if live.row and live.fresh_tokens == self._compress_every:
                done = len(live.held_token_ids)
                live.extend_row()
                self._scheduler.extend(request_id, len(live.held_token_ids), done)

    def close(self) -> None:
        """Wait until all parked rows are written to their files."""
        if self._parked:
            self._parked.close()

    def release(self, request_id: int) -> None:
        """Free the batch slot of a request that handed its row over."""
        self._scheduler.finish(request_id)

    def prefilled(self, request_id: int) -> int:
        """Prompt tokens of a live request that are prefilled; 0 while it waits."""
        return self._live[request_id].prefilled

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.busy

    @property
    def waiting(self) -> frozenset[int]:
        """Live requests without a batch slot."""
        return self._scheduler.waiting

    @property
    def slots_used(self) -> int:
        """Batch slots held by live requests."""
        return self._scheduler.slots_used

    def _decode(self, schedule: Schedule) -> list[OutputDelta]:
        slots = schedule.decode
        if not slots:
            return []
        drafts = self._drafts(slots)
        checks = self._checks(slots, drafts)
        try:
            for source, target in schedule.moves:
                self._executor.move(source, target)
            predictions = self._run_decode(slots, drafts if checks else None)
        except Exception as error:
            return [self._fail(request_id, slot, error) for request_id, slot in slots.items()]
        deltas: list[OutputDelta] = []
        for request_id, slot in slots.items():
            draft = drafts.get(request_id, [])
            if checks:
                deltas += self._advance(request_id, slot, predictions.of_tokens(slot), draft)
            else:
                deltas.append(self._sample(request_id, slot, predictions[slot]))
                self._compare(request_id, draft)
        return deltas

    def _drafts(self, slots: Mapping[int, int]) -> dict[int, list[int]]:
        """What may follow each running request's last token; none if a step takes one alone."""
        if not self._most_drafted:
            return {}
        return {one: self._live[one].draft(self._room(self._live[one])) for one in slots}

    def _room(self, live: Generation) -> int:
        """The most tokens to draft: not past the point where the row is extended."""
        if not live.row:
            return self._most_drafted
        return min(self._most_drafted, self._compress_every - live.fresh_tokens - 1)

    def _checks(self, slots: Mapping[int, int], drafts: Mapping[int, list[int]]) -> bool:
        """Whether the next step should check the drafts: those of every request, or of none."""
        if not any(drafts.values()):
            return False
        lives = [self._live[one] for one in slots]
        last = max(live.position for live in lives) + self._most_drafted
        if last >= self._limits.positions:  # a full cache has no slot for such a position
            return False
        expected = sum(self._live[one].expects(len(draft)) for one, draft in drafts.items())
        return self._times.pays(self._size(slots), len(slots), expected)

    def _size(self, slots: Mapping[int, int]) -> int:
        """The batch slots that a decode step runs."""
        last = max(slots.values())
        return next(size for size in self._limits.decode_batches if size > last)

    def _run_decode(
        self, slots: Mapping[int, int], drafts: Mapping[int, list[int]] | None
    ) -> Predictions:
        """One step. drafts: to be checked; None for a step of one token."""
        tokens, *others = self._inputs(slots)
        if drafts is not None:
            rows = np.zeros((len(tokens), self._limits.tokens_per_step), np.int64)
            rows[:, 0] = tokens
            for request_id, slot in slots.items():
                draft = drafts[request_id]
                rows[slot, 1 : 1 + len(draft)] = draft
            tokens = rows
        with self._times.measured(self._size(slots), drafts is not None):
            return self._executor.decode(tokens, *others)

    def _inputs(self, slots: Mapping[int, int]) -> tuple[NDArray[Any], ...]:
        """Token, position, prompt length and temperature of each slot, up to the last in use."""
        inputs = np.zeros((3, max(slots.values()) + 1), np.int64)
        temperatures = np.ones(inputs.shape[1], np.float32)
        for request_id, slot in slots.items():
            live = self._live[request_id]
            inputs[:, slot] = live.last_token, live.position, len(live.held_token_ids)
            temperatures[slot] = live.temperature
        return *inputs, temperatures

    def _advance(
        self, request_id: int, slot: int, predictions: list[Prediction], draft: list[int]
    ) -> list[OutputDelta]:
        """Take tokens for as long as they are the draft's.

        Each is chosen as after a step of its own, from the same logits and by the same random
        numbers. So drafts change neither the output nor its distribution.
        """
        live = self._live[request_id]
        is_forced, deltas = live.is_forced, []
        for index, prediction in enumerate(predictions[: len(draft) + 1]):
            deltas.append(self._sample(request_id, slot, prediction))
            if deltas[-1].finish_reason:
                break
            if index == len(draft) or live.last_token != draft[index]:
                self._executor.accept(slot, len(deltas))
                break
        if draft and not is_forced:
            right = len(deltas) - 1
            live.acceptance.saw(right, wrong=int(right < len(draft) and request_id in self._live))
            deltas[-1] = replace(deltas[-1], drafted=len(draft), accepted=right)
        return deltas

    def _compare(self, request_id: int, draft: list[int]) -> None:
        """Learn from a draft that was not checked whether its first token was right."""
        live = self._live.get(request_id)
        if live and draft and not live.is_forced:
            right = live.last_token == draft[0]
            live.acceptance.saw(int(right), wrong=int(not right))

    def _adopt(self, request_id: int, slot: int) -> OutputDelta:
        live = self._live[request_id]
        assert live.prefilled_elsewhere
        try:
            self._executor.release(slot)  # the scheduler says that it is free
            self._executor.adopt_row(slot, live.prefilled_elsewhere.row)
        except Exception as error:
            return self._fail(request_id, slot, error)
        delta = live.adopt(live.prefilled_elsewhere.first_token)
        if delta.finish_reason:
            self._forget(request_id)
        return delta

    def _prefill(self, chunk: Chunk) -> list[OutputDelta]:
        if chunk.request_id not in self._live:
            return []
        live = self._live[chunk.request_id]
        try:
            prediction = self._run(live, chunk)
        except Exception as error:
            return [self._fail(chunk.request_id, chunk.slot, error)]
        is_prompt = live.held_token_ids is live.prompt_token_ids
        live.prefilled = min(chunk.end, len(live.prompt_token_ids))
        # A broken chunk ends its request now: a later cancel would leave its NaN behind.
        if chunk.is_last or not can_sample(prediction):
            delta = self._sample(chunk.request_id, chunk.slot, prediction)
            cached = len(live.parked.token_ids) if live.parked and is_prompt else 0
            return [replace(delta, cached_tokens=cached)]
        return []

    def _run(self, live: Generation, chunk: Chunk) -> Prediction:
        where = chunk.slot, live.held_token_ids, chunk.start, chunk.end, live.temperature
        if chunk.repeated is not None:
            prediction = self._executor.repeat(chunk.slot, live.held_token_ids, chunk.repeated)
        elif not live.in_blocks:
            prediction = self._executor.prefill(*where)
        else:
            prediction = self._executor.extend(*where, live.parked)
        if chunk.is_last and self._keeps_rows and can_sample(prediction):
            row = self._executor.park(chunk.slot, where[1], in_blocks=live.in_blocks)
            if self._compress_every:
                live.row = row
            if self._parked:
                self._parked.keep(row)
        return prediction

    @property
    def _keeps_rows(self) -> bool:
        return bool(self._parked or self._compress_every)

    def _sample(self, request_id: int, slot: int, prediction: Prediction) -> OutputDelta:
        try:
            delta = self._live[request_id].advance(prediction)
        except Exception as error:  # of the executor: logits may have to be fetched
            return self._fail(request_id, slot, error)
        if delta.finish_reason == "length" and self._live[request_id].hands_over:
            return self._hand_over(request_id, slot, delta)
        if delta.finish_reason:
            self._forget(request_id)
        if delta.finish_reason == "error":
            self._executor.clear(slot)
        return delta

    def _hand_over(self, request_id: int, slot: int, delta: OutputDelta) -> OutputDelta:
        """End a request, and keep its batch slot until `release`."""
        del self._live[request_id]
        self._scheduler.keep(request_id)
        return replace(delta, row=self._executor.export_row(slot))

    def _fail(self, request_id: int, slot: int, error: Exception) -> OutputDelta:
        """End a request for an exception of the executor; its caches may hold anything now."""
        self._forget(request_id)
        with suppress(Exception):  # a broken executor may be unable to clear
            self._executor.clear(slot)
        return OutputDelta(request_id, "", (), "error", exception=error)

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]
        self._scheduler.finish(request_id)
