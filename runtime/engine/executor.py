"""Runs a build's graphs: takes prompts piece by piece, decodes, and owns the caches.

    takers       one for each kind of prefill work
    followers    what has state for each batch slot, first of all the rows of the caches

A method brings its own, and this module names none. The caches are decode's, with a row for each
batch slot, and the prompt cache where prefill goes chunk by chunk. They are allocated once and
written in place. Callers name batch slots and never see a key or a value. Knows no library, no
request and no text.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import Manifest
from snapexport.contract.pieces import CHUNK, Piece, pieces_of
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffers, DeviceError, Floats, GraphBackend, Integers
from snapexport.runtime.engine.bound_graph import Prediction, Predictions
from snapexport.runtime.engine.chunks import make_chunks
from snapexport.runtime.engine.decode_steps import DecodeSteps, SlotRows
from snapexport.runtime.engine.fill_slot import kept_of_layers
from snapexport.runtime.engine.followers import Drafts, Step
from snapexport.runtime.engine.graph_set import GraphSet, Role
from snapexport.runtime.engine.held import held_shares
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.method import (
    Loaded,
    MakeTaker,
    MethodRun,
    Refills,
    Resumes,
    Taker,
    Takers,
    runs,
)
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.rows import Row, Rows, digest_of


class Parking:
    """Copies a prompt's row to the host, and goes on from it: in a next turn or a long output."""

    def __init__(self, rows: Rows, takers: Takers, onto_rows: Resumes) -> None:
        self._rows, self._takers, self._onto_rows = rows, takers, onto_rows

    @classmethod
    def of(cls, rows: Rows, takers: Takers) -> "Parking | None":
        """None where no graph extends a row."""
        found = (taker for taker in takers.values() if isinstance(taker, Resumes))
        return next((cls(rows, takers, taker) for taker in found), None)

    def park(self, slot: int, last: Piece) -> Row:
        """A copy of the batch slot's row, right after its prompt's last piece."""
        prompt_length = int(self._rows.held[0, slot])
        beside = self._takers[last.kind].slot_positions(prompt_length)
        return self._rows.copy_out(slot, beside)

    def resume(self, slot: int, row: Row) -> None:
        """Go on from a parked row: the prompt's next block follows it."""
        self._onto_rows.resume(row)
        for follower in self._rows.followers:
            follower.begin(slot, row.prompt_length)


_ALL_ROWS = SlotRows()


class Executor:
    """A loaded build. Made by `open_executor`.

    Predictions are in the executor's own buffers, and valid until its next call. Every call
    raises DeviceError after `close`, or if the device fails.

    A prompt fills its batch slot after its last piece, in the next call: its first token need not
    wait for the vote.

    captured: whether a decode step is a single launch of a CUDA graph.
    prompt_cache: None where a single shot needs none.
    drafters: make what guesses tokens for requests.
    drafts: a follower that drafts tokens by graphs; None where none is loaded.
    parking: None where no graph extends a row.
    """

    def __init__(
        self,
        manifest: Manifest,
        graphs: GraphSet,
        backend: GraphBackend,
        weights: Buffers | None = None,
        prompt_cache: PromptCache | None = None,
        slot_rows: SlotRows = _ALL_ROWS,
        make_rows: Callable[..., Rows] = Rows,
    ) -> None:
        """weights: those that the graphs take as inputs, in the backend's memory. prompt_cache:
        another executor's of the same model, on the same device. slot_rows, make_rows: of ranks
        that share the batch slots.

        The backend's memory is this executor's own from now on: `close` frees it.
        """
        self.limits = limits = Limits.of(
            manifest,
            full_cache=graphs.full_cache,
            verifies=bool(graphs.verify),
            form=graphs.form,
            chunks=graphs.chunks,
        )
        self.backend = backend
        self._manifest, self._graphs = manifest, graphs
        weights = weights or {}
        self._decode = decode = DecodeSteps(manifest, graphs, backend, weights, slot_rows)
        caches = [decode.caches(slot) for slot in range(limits.batch)]
        self._rows = make_rows(
            backend.memory, caches, limits.decode_batches, digest_of(manifest), limits.positions
        )
        loaded = Loaded(
            manifest, graphs, backend, weights, limits, decode, self._rows, prompt_cache
        )
        methods = runs(manifest)
        makers = (make for method in methods for make in method.followers)
        self._rows.followers = tuple(made for make in makers if (made := make(loaded)))
        self._followers = self._rows, *self._rows.followers
        decode.followers = self._rows.followers
        self._takers: dict[str, Taker] = {}
        for kind, make_taker in _takers_of(methods):
            if taker := make_taker(loaded, self._takers):
                self._takers[kind] = taker
        self._refills = next((t for t in self._takers.values() if isinstance(t, Refills)), None)
        self.prompt_cache = self._refills.cache if self._refills else prompt_cache
        found = (follower for follower in self._rows.followers if isinstance(follower, Drafts))
        self.drafts: Drafts | None = next(found, None)
        self.parking: Parking | None = Parking.of(self._rows, self._takers)
        self.drafters = tuple(make for method in methods for make in method.drafters)
        self._closed = False
        self._last_prefilled = 0
        captured = decode.capture()
        self.captured = bool(captured) and all(captured)
        if any(captured):  # each was run once
            for slot in range(limits.batch):
                self.clear(slot)

    @property
    def decode_buffers(self) -> dict[str, NDArray[Any]]:
        """Inputs and outputs of decode after a step, those that the host can see: to be read."""
        self._require_decode()
        return dict(self._decode.graphs[self.limits.batch].arrays)

    @property
    def rows(self) -> Rows:
        """The rows of all batch slots."""
        self.require_open()
        return self._rows

    @property
    def role(self) -> Role:
        """Says which graphs are loaded."""
        return self._graphs.role

    def take(
        self, slot: int, prompt: Sequence[int], piece: Piece, temperature: float = 1.0
    ) -> Prediction:
        """Do a piece of a prompt's prefill. After the last one the next call fills the batch slot.

        The pieces of one prompt follow each other. Between them may come decode steps, and blocks
        of a running request where no piece `keeps_row`, but no other prompt. The prediction is of
        the token after the piece. temperature, above 0: for graphs that divide by it.
        """
        taker, token_ids = self.taker(piece.kind), tuple(prompt)
        self._last_prefilled = slot
        prediction = taker.take(slot, token_ids, piece, temperature)
        for follower in self._followers:
            follower.took(slot, token_ids, piece, taker.hidden_states)
            if piece.is_last:
                follower.fill(slot, len(token_ids))
        if self.limits.ranks > 1:  # they exchange tensors: all of them at the same time
            self.fill_slot()
        return prediction

    def fill_slot(self) -> None:
        """Fill the batch slot of the last prompt now, if that is left."""
        self.require_open()

    def prefill_prompt(
        self, slot: int, prompt: Sequence[int], temperature: float = 1.0
    ) -> Prediction:
        """Take all pieces of a prompt that no other work comes between."""
        for piece in pieces_of(len(prompt), self.limits.prefill):
            prediction = self.take(slot, prompt, piece, temperature)
        return prediction

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Floats | None = None,
    ) -> Predictions:
        """Run one token of each of the first n batch slots; each argument is [n].

        input_ids [n,q], of `limits.step_tokens` tokens: several of each, position_ids being the
        first one's. The prediction of a token holds if all tokens before it were right. `accept`
        has to follow for every batch slot in use; the other tokens are forgotten.

        Idle batch slots take zeros, and their contents are lost: a prompt's last piece rewrites
        them. temperature, above 0: for graphs that divide by it; None for 1 in all
        slots.
        """
        self._require_decode()
        predictions = self._decode.run(input_ids, position_ids, prompt_length, temperature)
        states = self._decode.hidden_states(several=input_ids.ndim > 1)
        step = Step(input_ids, position_ids, prompt_length, states)
        for follower in self._followers:
            follower.decoded(step)
        return predictions

    def accept(self, slot: int, count: int) -> None:
        """Keep the first `count` tokens, 1 at least, of those that `decode` ran for a slot."""
        for follower in self._followers:
            follower.accept(slot, count)

    def move(self, source: int, target: int) -> None:
        """Copy a batch slot over another. The source is idle from then on."""
        self.require_open()
        for follower in self._followers:
            follower.move(source, target)
        if self._last_prefilled == source:
            self._last_prefilled = target

    def release(self, slot: int) -> None:
        """Note that a batch slot is idle. Its contents stay until something is written there."""
        self._leave_unfilled(slot)
        for follower in self._followers:
            follower.release(slot)

    def clear(self, slot: int) -> None:
        """Zero what the batch slot's prompt filled, since it may have left NaN there.

        Masked attention multiplies stale entries by 0, and 0 * NaN would reach later prompts. The
        prompt cache is cleared too, unless another prompt came since. Other batch slots, a prompt
        half-way through prefill and the last predictions stay as they are.
        """
        self._leave_unfilled(slot)
        self.require_open()
        for follower in self._followers:
            follower.clear(slot)
        if slot == self._last_prefilled:
            for taker in self._takers.values():
                taker.clear()

    def forget_prompt(self) -> None:
        """Forget the tokens of the prompt cache: the next prompt starts from none of them."""
        self.require_open()
        if self.prompt_cache:
            self.prompt_cache.forget()

    def compress(self, slot: int, prompt_length: int) -> None:
        """Fill a batch slot from the last prompt once more: to measure the step by itself.

        That is the compress step, or a copy where nothing is compressed.
        """
        self._require_prefill()
        assert self._refills, "no graph is loaded that fills a batch slot again"
        self._refills.refill(slot, prompt_length)

    def topk_positions(self) -> list[Integers] | None:
        """Return what the last prompt kept, int64 [Hkv,K] for each layer, -1 where unused.

        With head groups K is the largest of the layer's. None where nothing is compressed.
        """
        self.require_open()
        if self._graphs.full_cache:
            return None
        kept = self._refills.kept if self._refills else {}
        return kept_of_layers(self.backend.memory, kept, self._manifest)

    def held_shares(self, last: Piece, prompt_length: int) -> Floats:
        """The share of the KV heads that hold each position of a prompt, fp32 [prompt_length].

        Right after its last piece.
        """
        taker = self.taker(last.kind)
        if self._graphs.full_cache:
            return np.ones(prompt_length, np.float32)
        positions = taker.slot_positions(prompt_length)
        return held_shares(positions, self._manifest.geometry, prompt_length)

    def close(self) -> None:
        """Free the device's memory now. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._leave_unfilled()
            self._decode.close()
            self._takers.clear()
            self._followers = (self._rows,)
            self._refills = self.drafts = self.parking = None
            self._rows.followers = self._decode.followers = ()
            self.backend.close()

    def taker(self, kind: str) -> Taker:
        """The taker of a kind of prefill work."""
        self._require_prefill()
        assert kind in self._takers, f"no graph is loaded that takes a {kind}"
        return self._takers[kind]

    def require_open(self) -> None:
        """Raise DeviceError after `close`; else fill the batch slot that is left to fill."""
        if self._closed:
            raise DeviceError("the executor was closed")
        if self.prompt_cache:
            self.prompt_cache.finish_reading()

    def _leave_unfilled(self, slot: int | None = None) -> None:
        if self._refills:
            self._refills.leave_unfilled(slot)

    def _require_prefill(self) -> None:
        self.require_open()
        if self.role == "decode":
            raise UserError("this executor only decodes", 'open it with role="both" or "prefill"')

    def _require_decode(self) -> None:
        self.require_open()
        if self.role == "prefill":
            raise UserError("this executor only prefills", 'open it with role="both" or "decode"')


def _takers_of(methods: Sequence[MethodRun]) -> Iterator[tuple[str, MakeTaker]]:
    """Who takes which kind of pieces, in the order in which they are made."""
    yield CHUNK, make_chunks
    for method in methods:
        yield from method.takers
