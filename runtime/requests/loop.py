"""Runs continuous batching: carries out the scheduler's steps on an executor.

Knows neither prompts as text nor callers. Not thread-safe: one thread steps, submits and cancels.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

import numpy as np
from tokenizers import Tokenizer

from snapexport.contract.exclusions import require_compatible
from snapexport.contract.pieces import CHUNK, Piece, pieces
from snapexport.errors import UserError
from snapexport.runtime.engine.bound_graph import Prediction, Predictions
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.rows import Row
from snapexport.runtime.prompt_store.keeper import PromptKeeper
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.parked_rows import ParkedRow, ParkedRows
from snapexport.runtime.requests.pulse import Pulse
from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.runtime.requests.scheduler import Schedule, Scheduler, Work
from snapexport.runtime.requests.speculation import Draft, Drafter, Speculation, StepInputs


class Loop:
    """Requests on one executor. A request is live from `submit` to its last delta.

    scheduler: knows which of them wait. parked: rows that are kept for later prompts, if any are.
    keeper: starts prompts from chunks on disk, if any are kept.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        max_num_batched_tokens: int | None,
        drafters: Sequence[Drafter] = (),
        parked: ParkedRows | None = None,
        compress_every: int = 0,
        keeper: PromptKeeper | None = None,
    ) -> None:
        """drafters: guess tokens ahead, where the executor can check several.

        parked: prompts' rows, which are kept for prompts that begin with them. compress_every:
        tokens of an output after which its batch slot is compressed again; 0: never.
        """
        self._executor = executor
        self._tokenizer = tokenizer
        limits = self._limits = executor.limits
        self.scheduler = Scheduler(
            limits.batch, limits.prefill_chunk, max_num_batched_tokens, limits.decode_batches
        )
        self.parked, self.keeper = parked, keeper
        self._salt = ""
        """Of the prompt whose tokens the prompt cache holds."""
        self.pulse = Pulse()
        self._speculation = Speculation(limits, drafters)
        self._compress_every = compress_every
        self._live: dict[int, Generation] = {}
        self._unfilled: tuple[int, int] | None = None
        """The request, and its batch slot, whose prompt was taken last: its first token is out."""
        self._ids = count()

    def submit(self, request: Request) -> int:
        """Queue a request; its deltas carry the returned id. Raises UserError for a foreign row."""
        self._require_hand_over(request)
        request_id = next(self._ids)
        live = Generation(request_id, request, self._limits, self._tokenizer, self._compress_every)
        self._live[request_id] = live
        if request.prefilled:
            self.scheduler.add_prefilled(request_id)
        else:
            self._add(request_id, live)
        return request_id

    def _add(self, request_id: int, live: Generation) -> None:
        """Queue it for prefill: of the whole prompt, or of what follows a parked row."""
        prompt, prefill = live.prompt_token_ids, self._limits.prefill
        too_long = prefill.is_too_long(len(prompt))
        # A row that saves no chunk is worse than prefill, which sees all of the prompt.
        least = 1 if too_long else prefill.least_row(len(prompt))
        rows = self.parked if self._starts_from_rows(live) else None
        if rows and (found := rows.find(prompt, least, live.session)):
            live.begins_with, live.prefilled = found.row, len(found.token_ids)
        live.cached_tokens = live.prefilled
        self.scheduler.add(request_id, self._pieces(live))

    def _starts_from_rows(self, live: Generation) -> bool:
        """Whether a prompt may begin with a parked row, if any are kept.

        Kept chunks are better where they can be had: the vote then sees all of the prompt.
        """
        is_too_long = self._limits.prefill.is_too_long(len(live.prompt_token_ids))
        return is_too_long or not self.keeper

    def _pieces(self, live: Generation) -> Sequence[Piece]:
        """The prompt's work: at once, or in two parts with a row to park between them."""
        prompt, prefill, done = live.prompt_token_ids, self._limits.prefill, live.prefilled
        found: tuple[Piece, ...] = ()
        if live.park_at < prefill.chunk or not self._starts_from_rows(live):
            live.park_at = 0  # a row that may save no chunk is not worth a block
        if self.parked and done < live.park_at < len(prompt):
            live.cached_token_ids = prompt[: live.park_at]
            onto_row = done > 0 or prefill.is_too_long(live.park_at)
            found = pieces(live.park_at, done, prefill, onto_row=onto_row)
            done = live.park_at
        onto_row = done > 0 or prefill.is_too_long(len(prompt))
        return (*found, *pieces(len(prompt), done, prefill, onto_row=onto_row))

    def _require_hand_over(self, request: Request) -> None:
        require_compatible(
            {
                "hand_over": request.hand_over,
                "role": self._executor.role,
                "prefilled": request.prefilled is not None,
                "tensor_parallel": self._limits.ranks,
            }
        )
        if request.prefilled is None:
            return
        row, length = request.prefilled.row, len(request.prompt_token_ids)
        self._executor.rows.require_fits(row)
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
        self.pulse.work()
        deltas = self._fill_slot()
        if self._compress_every:
            self._extend_rows()
        schedule = self.scheduler.schedule()
        deltas += self._decode(schedule)
        deltas += [self._adopt(request_id, slot) for request_id, slot in schedule.adopt.items()]
        for work in schedule.prefill:
            deltas += self._prefill(work)
        return deltas

    def _fill_slot(self) -> list[OutputDelta]:
        """Fill the batch slot of the last prompt, unless its request has ended."""
        if not self._unfilled:
            return []
        (request_id, slot), self._unfilled = self._unfilled, None
        if request_id not in self._live:
            self._executor.release(slot)
            return []
        try:
            self._executor.fill_slot()
        except Exception as error:
            return [self._fail(request_id, slot, error)]
        self.pulse.beat()
        return []

    def _extend_rows(self) -> None:
        """Pause the running requests whose output has grown enough, to compress them again.

        Each goes on from the row of its latest compression. It always has the same number of new
        tokens: neither neighbours nor drafts decide what is kept.
        """
        for request_id, live in self._live.items():
            if live.is_to_be_extended:
                done = len(live.cached_token_ids)
                live.extend_row()
                length = len(live.cached_token_ids)
                work = pieces(length, done, self._limits.prefill, onto_row=True)
                self.scheduler.extend(request_id, work)

    def prefilled(self, request_id: int) -> int:
        """Prompt tokens of a request that are prefilled; 0 while it waits, or once it ended."""
        return live.prefilled if (live := self._live.get(request_id)) else 0

    def _decode(self, schedule: Schedule) -> list[OutputDelta]:
        slots = schedule.decode
        if not slots:
            return []
        try:
            for source, target in schedule.moves:
                self._executor.move(source, target)
            step = self._inputs(slots)
            lives = [self._live[request_id] for request_id in slots]
            drafts, proposed = self._speculation.choose(lives, step)
            predictions = self._run_decode(step, drafts)
        except Exception as error:
            return [self._fail(request_id, slot, error) for request_id, slot in slots.items()]
        deltas: list[OutputDelta] = []
        for request_id, slot in slots.items():
            if draft := drafts.get(request_id):
                some = self._advance(request_id, slot, predictions.of_tokens(slot), draft)
            else:
                some = [self._sample(request_id, slot, predictions[slot])]
            deltas += some
            if (other := proposed.get(request_id)) and other is not draft:
                self._speculation.learn(other, some[0])
        return deltas

    def _run_decode(self, step: StepInputs, drafts: Mapping[int, Draft]) -> Predictions:
        """One step. drafts: to be checked; none for a step of one token."""
        tokens = step.input_ids
        if drafts:
            tokens = np.zeros((len(tokens), self._limits.step_tokens), np.int64)
            tokens[:, 0] = step.input_ids
            for request_id, slot in step.slots.items():
                draft = drafts[request_id].tokens
                tokens[slot, 1 : 1 + len(draft)] = draft
        with self._speculation.measured(step, drafts):
            predictions = self._executor.decode(
                tokens, step.position_ids, step.prompt_length, step.temperature
            )
        self.pulse.beat()
        return predictions

    def _inputs(self, slots: Mapping[int, int]) -> StepInputs:
        """The inputs of each batch slot up to the last in use."""
        inputs = np.zeros((3, max(slots.values()) + 1), np.int64)
        temperatures = np.ones(inputs.shape[1], np.float32)
        for request_id, slot in slots.items():
            live = self._live[request_id]
            inputs[:, slot] = live.last_token, live.position, len(live.cached_token_ids)
            temperatures[slot] = live.temperature
        input_ids, position_ids, prompt_length = inputs
        return StepInputs(slots, input_ids, position_ids, prompt_length, temperatures)

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
        if tokens and draft.drafter:
            right = len(deltas) - 1
            wrong = right < len(tokens) and request_id in self._live
            draft.drafter.learn(request_id, right, int(wrong))
            deltas[-1] = replace(deltas[-1], drafted=len(tokens), accepted=right)
        return deltas

    def _adopt(self, request_id: int, slot: int) -> OutputDelta:
        live = self._live[request_id]
        assert live.prefilled_elsewhere
        try:
            self._executor.release(slot)  # the scheduler says that it is free
            self._executor.rows.copy_in(slot, live.prefilled_elsewhere.row)
        except Exception as error:
            return self._fail(request_id, slot, error)
        delta = live.adopt(live.prefilled_elsewhere.first_token)
        if delta.finish_reason:
            self._forget(request_id)
        return delta

    def _prefill(self, work: Work) -> list[OutputDelta]:
        if work.request_id not in self._live:
            return []
        live, piece = self._live[work.request_id], work.piece
        is_beginning, deltas = live.is_beginning, self._fill_slot()
        try:
            prediction = self._take(live, work)
        except Exception as error:
            return [*deltas, self._fail(work.request_id, work.slot, error)]
        is_prompt = live.cached_token_ids is live.prompt_token_ids
        live.prefilled = max(live.prefilled, min(piece.end, len(live.prompt_token_ids)))
        # A broken piece ends its request now: a later cancel would leave its NaN in the caches.
        if (piece.is_last and not is_beginning) or not prediction.is_finite:
            delta = self._sample(work.request_id, work.slot, prediction)
            cached = live.cached_tokens if is_prompt else 0
            held = live.held if is_prompt else None
            deltas.append(replace(delta, cached_tokens=cached, held=held))
        return deltas

    def _take(self, live: Generation, work: Work) -> Prediction:
        piece, parking = work.piece, self._executor.parking
        if live.begins_with and piece.start == live.begins_with.prompt_length:
            assert parking, "the row was parked here"
            parking.resume(work.slot, live.begins_with)
        tokens = live.cached_token_ids
        if piece.kind == CHUNK and piece.start == 0:
            self._begin_chunks(live)
        prediction = self._executor.take(work.slot, tokens, piece, live.temperature)
        self.pulse.beat()
        if self.keeper and piece.kind == CHUNK and prediction.is_finite:
            self.keeper.took(piece.start, piece.end)
        if piece.is_last and live.hands_over:
            self._executor.fill_slot()
        elif piece.is_last:
            self._unfilled = work.request_id, work.slot
        if piece.is_last and self._keeps_row_of(live) and prediction.is_finite:
            assert parking, "rows are kept only where they can be extended"
            self._keep(live, parking.park(work.slot, piece))
        if piece.is_last and live.shows_held and tokens is live.prompt_token_ids:
            live.held = self._executor.held_shares(piece, len(tokens))
        return prediction

    def _begin_chunks(self, live: Generation) -> None:
        """Take what is kept of a prompt's beginning, none of another salt, and leave its work out.

        Prompts of another salt must not even be faster for what this one has left.
        """
        if live.cache_salt != self._salt:
            self._executor.forget_prompt()
            self._salt = live.cache_salt
        if self.keeper:
            done = self.keeper.begin(live.cached_token_ids, live.cache_salt)
            live.cached_tokens = live.prefilled = done
            self.scheduler.skip(live.request_id, lambda piece: piece.end <= done)

    def _keep(self, live: Generation, row: Row) -> None:
        """Keep a copy of a batch slot that was just filled, for requests that go on from it."""
        if self.parked and self._parks(live):
            self.parked.keep(ParkedRow(live.cached_token_ids, row, live.session))
        if live.is_beginning:
            live.begins_with, live.cached_token_ids = row, live.prompt_token_ids
        elif self._compress_every:
            live.row = row

    def _keeps_row_of(self, live: Generation) -> bool:
        return bool(self._compress_every) or self._parks(live)

    def _parks(self, live: Generation) -> bool:
        """Whether the row that was just filled is parked.

        The end of a prompt that is parked before it would take that row's place, and one token is
        of no use to others.
        """
        is_place = live.is_beginning or not live.park_at
        return self.parked is not None and is_place and len(live.cached_token_ids) > 1

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
        self._speculation.forget(request_id)
        self.scheduler.keep(request_id)
        return replace(delta, row=self._executor.rows.view(slot))

    def _fail(self, request_id: int, slot: int, error: Exception) -> OutputDelta:
        """End a request for an exception of the executor; its caches may hold anything now."""
        self._forget(request_id)
        with suppress(Exception):  # a broken executor may be unable to clear
            self._executor.clear(slot)
        return OutputDelta(request_id, "", (), "error", exception=error)

    def close(self) -> None:
        """Wait until what is kept for later prompts is written."""
        for kept in (self.parked, self.keeper):
            if kept:
                kept.close()

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]
        self.scheduler.finish(request_id)
        self._speculation.forget(request_id)
