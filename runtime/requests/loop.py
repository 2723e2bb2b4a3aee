"""Runs continuous batching: carries out the scheduler's steps on an executor.

Knows neither prompts as text nor callers. Not thread-safe: one thread steps, submits and cancels.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.followers.mtp_drafts import NO_DRAFT
from snapexport.runtime.engine.predictions import Prediction, Predictions
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.parked_rows import ParkedRows
from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.runtime.requests.sampling import can_sample
from snapexport.runtime.requests.scheduler import Chunk, Schedule, Scheduler
from snapexport.runtime.requests.speculation import Draft, StepTimes


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
            limits.batch,
            limits.prefill_chunk,
            max_num_batched_tokens,
            limits.decode_batches,
            limits.block_voters,
        )
        self._parked = parked
        self._most_drafted = limits.tokens_per_step - 1 if speculates else 0
        self._drafts_by_mtp = speculates and limits.drafts
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
        session = live.session
        live.parked = self._parked.find(prompt, least, session) if self._parked else None
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
    def parks(self) -> bool:
        """Whether rows are kept for later prompts."""
        return self._parked is not None

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
        try:
            for source, target in schedule.moves:
                self._executor.move(source, target)
            looked_up = self._looked_up(slots)
            drafts = self._to_check(slots, looked_up)
            predictions = self._run_decode(slots, drafts)
        except Exception as error:
            return [self._fail(request_id, slot, error) for request_id, slot in slots.items()]
        deltas: list[OutputDelta] = []
        for request_id, slot in slots.items():
            if draft := drafts.get(request_id):
                some = self._advance(request_id, slot, predictions.of_tokens(slot), draft)
            else:
                some = [self._sample(request_id, slot, predictions[slot])]
            deltas += some
            if (other := looked_up.get(request_id)) and other is not draft:
                _learn(other, some[0])
        return deltas

    def _looked_up(self, slots: Mapping[int, int]) -> dict[int, Draft]:
        """What may follow each running request's last token, by prompt lookup or a continuation;
        nothing if a step takes one token alone."""
        if not self._most_drafted:
            return {}
        return {one: self._live[one].draft(self._most(self._live[one])) for one in slots}

    def _most(self, live: Generation) -> int:
        """The most tokens to draft: not past the point where the row is extended."""
        if not live.row:
            return self._most_drafted
        return min(self._most_drafted, self._compress_every - live.fresh_tokens - 1)

    def _to_check(
        self, slots: Mapping[int, int], looked_up: Mapping[int, Draft]
    ) -> Mapping[int, Draft]:
        """What the next step should check: a draft for every request, or none for any."""
        lives = [self._live[one] for one in slots]
        last = max(live.position for live in lives) + self._most_drafted
        if not self._most_drafted or last >= self._limits.positions:
            return {}  # a full cache has no slot for such a position
        size, expected = self._size(slots), sum(one.expected for one in looked_up.values())
        better = self._better_by_mtp(looked_up)
        gain = sum(self._live[one].by_mtp.rate - looked_up[one].expected for one in better)
        if better and self._times.pays(size, len(slots), expected, gain):
            drafts = {**looked_up, **self._by_mtp(slots, better)}
            return drafts if any(one.tokens for one in drafts.values()) else {}
        for one in better:
            self._live[one].by_mtp.rest()
        if not any(one.tokens for one in looked_up.values()):
            return {}
        return looked_up if self._times.pays(size, len(slots), expected) else {}

    def _better_by_mtp(self, looked_up: Mapping[int, Draft]) -> list[int]:
        """Requests for which multi-token prediction has more right tokens to be expected."""
        if not self._drafts_by_mtp:
            return []
        return [
            one
            for one, draft in looked_up.items()
            if not (live := self._live[one]).is_forced
            and live.room(self._most(live)) > 0
            and draft.expected < live.by_mtp.rate
        ]

    def _by_mtp(self, slots: Mapping[int, int], better: Sequence[int]) -> dict[int, Draft]:
        """A drafted token for each of these requests, where the executor has one."""
        tokens, positions, lengths, _ = self._inputs(slots)
        start = time.perf_counter()
        drafted = self._executor.draft(tokens, positions, lengths)
        if (drafted != NO_DRAFT).any():  # else nothing was run
            self._times.saw(self._size(slots), "draft", time.perf_counter() - start)
        found = {one: int(drafted[slots[one]]) for one in better}
        return {
            one: Draft([token], self._live[one].by_mtp)
            for one, token in found.items()
            if token != NO_DRAFT
        }

    def _size(self, slots: Mapping[int, int]) -> int:
        """The batch slots that a decode step runs."""
        last = max(slots.values())
        return next(size for size in self._limits.decode_batches if size > last)

    def _run_decode(self, slots: Mapping[int, int], drafts: Mapping[int, Draft]) -> Predictions:
        """One step. drafts: to be checked; none for a step of one token."""
        tokens, *others = self._inputs(slots)
        if drafts:
            rows = np.zeros((len(tokens), self._limits.tokens_per_step), np.int64)
            rows[:, 0] = tokens
            for request_id, slot in slots.items():
                draft = drafts[request_id].tokens
                rows[slot, 1 : 1 + len(draft)] = draft
            tokens = rows
        with self._times.measured(self._size(slots), "several" if drafts else "single"):
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
        self, request_id: int, slot: int, predictions: list[Prediction], draft: Draft
    ) -> list[OutputDelta]:
        """Take tokens for as long as they are the draft's.

        Each is chosen as after a step of its own, from the same logits and by the same random
        numbers. So drafts change neither the output nor its distribution.
        """
        live, tokens = self._live[request_id], draft.tokens
        deltas: list[OutputDelta] = []
        for index, prediction in enumerate(predictions[: len(tokens) + 1]):
            deltas.append(self._sample(request_id, slot, prediction))
            if deltas[-1].finish_reason:
                break
            if index == len(tokens) or live.last_token != tokens[index]:
                self._executor.accept(slot, len(deltas))
                break
        if tokens and draft.acceptance:
            right = len(deltas) - 1
            wrong = right < len(tokens) and request_id in self._live
            draft.acceptance.saw(right, int(wrong))
            deltas[-1] = replace(deltas[-1], drafted=len(tokens), accepted=right)
        return deltas

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
                self._parked.keep(replace(row, session=live.session))
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


def _learn(draft: Draft, delta: OutputDelta) -> None:
    """Learn from a draft that was not checked whether its first token was right."""
    if draft.tokens and draft.acceptance and delta.token_ids:
        right = delta.token_ids[0] == draft.tokens[0]
        draft.acceptance.saw(int(right), int(not right))
