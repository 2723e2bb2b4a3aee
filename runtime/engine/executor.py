"""Runs a build's prefill, compress and decode graphs, and owns their caches.

The caches are decode's, with a row for each batch slot, and the prompt cache where prefill goes
chunk by chunk. They are allocated once and written in place. Callers name batch slots and never see
a key or a value. Knows no library, no request and no text.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import Manifest, TensorSpec
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer, Buffers, DeviceError, GraphBackend
from snapexport.runtime.engine.blocks import Blocks, ParkedRow
from snapexport.runtime.engine.decode_steps import DecodeSteps, Integers, Temperatures
from snapexport.runtime.engine.followers.mtp_drafts import MtpDrafts
from snapexport.runtime.engine.graph_set import GraphSet, Limits
from snapexport.runtime.engine.hand_over import Role, Row, digest_of, place_of, require_adoptable
from snapexport.runtime.engine.kept_positions import kept_of_caches, kept_of_layers
from snapexport.runtime.engine.predictions import Prediction, Predictions
from snapexport.runtime.engine.prefill import Chunked, Prefill
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.prompt_graphs import PromptGraphs
from snapexport.runtime.engine.pseudo_tokens import PseudoTokens
from snapexport.runtime.engine.slot_rows import SlotRows

_ALL_ROWS = SlotRows()


class Executor:
    """A loaded build. Made by `open_executor`.

    Predictions lie in the executor's own buffers: they are valid until its next call. Every call
    raises DeviceError after `close`, or if the device fails.

    captured: whether a decode step is a single launch of a CUDA graph. prompt_cache: None where a
    single shot needs none.
    """

    def __init__(
        self,
        manifest: Manifest,
        graphs: GraphSet,
        backend: GraphBackend,
        weights: Buffers | None = None,
        prompt_cache: PromptCache | None = None,
        slot_rows: SlotRows = _ALL_ROWS,
    ) -> None:
        """weights: those that the graphs take as inputs, in the backend's memory. prompt_cache:
        another executor's of the same model, on the same device. slot_rows: of ranks that share the
        batch slots.

        The backend's memory is this executor's own from now on: `close` frees it.
        """
        self.limits = Limits.of(
            manifest,
            full_cache=graphs.full_cache,
            verifies=bool(graphs.verify),
            prefill=graphs.form,
            drafts=graphs.mtp,
        )
        self.backend = backend
        self._manifest, self._graphs = manifest, graphs
        self._memory = backend.memory
        self._weights = weights or {}
        self._digest = digest_of(manifest)
        self._decode = DecodeSteps(manifest, graphs, backend, self._weights, slot_rows)
        self._rows = [self._decode.caches(slot) for slot in range(self.limits.batch)]
        self._held = np.zeros((2, self.limits.batch), np.int64)
        """Prompt length and next position of what each batch slot holds; 0: it is idle."""
        self._prompts = self._make_prompts(prompt_cache)
        self._prefill = self._prompts.prefill if self._prompts else None
        self.prompt_cache = self._prompts.cache if self._prompts else prompt_cache
        self._blocks = self._make_blocks()
        positions = self.limits.positions
        self._mtp = MtpDrafts(manifest, positions, backend, self._weights) if graphs.mtp else None
        self._closed = False
        self._last_prefilled = 0
        captured = self._decode.capture()
        self.captured = bool(captured) and all(captured)
        if any(captured):  # each was run once
            for slot in range(self.limits.batch):
                self.clear(slot)

    @property
    def decode_buffers(self) -> dict[str, NDArray[Any]]:
        """Inputs and outputs of decode after a step, those that the host can see: to be read."""
        self._require_decode()
        return dict(self._decode.graphs[self.limits.batch].arrays)

    def prefill(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float = 1.0,
    ) -> Prediction:
        """Run one chunk of a prompt: its tokens at positions [start, end).

        The last chunk also fills batch slot `slot`. The chunks of one prompt follow each other,
        with decode steps but no other prompt between them. The prediction is of the token after the
        chunk. temperature, above 0: for builds with top tokens. Where pseudo tokens vote, the last
        chunk also writes them: decode steps, one more chunk, and the compress step again.
        """
        prefill = self._require_prefill()
        self._last_prefilled = slot
        prediction = prefill.run(slot, prompt, start, end, temperature)
        if self._mtp:
            self._mtp.take(slot, prompt, start, end, prefill.hidden_states)
        if end == len(prompt):
            self._hold(slot, end)
            if self.limits.behind(end):
                return self._vote_again(slot, prompt, prediction.copied())
        return prediction

    def repeat(self, slot: int, prompt: Sequence[int], index: int) -> Prediction:
        """Run a chunk of the prompt's repetition, after its own chunks.

        The last of `limits.repeated_chunks` fills the slot. Predicts the token after the prompt.
        """
        prefill = self._require_prefill()
        assert isinstance(prefill, Chunked), "a single shot repeats nothing"
        self._hold(slot, len(prompt))
        return prefill.repeat(slot, prompt, index)

    def _vote_again(self, slot: int, prompt: Sequence[int], prediction: Prediction) -> Prediction:
        """Fill the slot by the vote of tokens that the model writes; by the prompt's own queries if
        their logits are not finite."""
        assert isinstance(self._prefill, Chunked), "a single shot writes no pseudo tokens"
        writer = PseudoTokens(self._decode, self._held, self.limits)
        self._prefill.vote_again(slot, prompt, writer.write(slot, prediction))
        self._hold(slot, len(prompt))
        return prediction

    def extend(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float = 1.0,
        parked: ParkedRow | None = None,
    ) -> Prediction:
        """Run one block of a prompt onto a compressed row; otherwise as `prefill`.

        parked: the row to begin with, for a prompt that begins with its tokens; None: an empty one.
        The first block begins behind it.
        """
        blocks = self._require_blocks()
        if start == (len(parked.token_ids) if parked else 0):
            blocks.begin(parked)
            if self._mtp:  # the hidden states of a parked row are not known
                self._mtp.begin(slot, start)
        prediction = blocks.run(slot, prompt, start, end, temperature)
        if self._mtp:
            self._mtp.take(slot, prompt, start, end, blocks.hidden_states)
        if end == len(prompt):
            self._hold(slot, end)
        return prediction

    def park(self, slot: int, prompt: Sequence[int], *, in_blocks: bool) -> ParkedRow:
        """Copy the row of a prompt to the host, right after its last chunk, or its last block."""
        blocks = self._require_blocks()
        if in_blocks:
            return blocks.parked(prompt)
        assert self._prompts, "chunks were run before"
        kept = kept_of_caches(self._memory, self._prompts.kept, self._manifest)
        return blocks.parked_from_slot(slot, prompt, kept)

    def prefill_prompt(
        self, slot: int, prompt: Sequence[int], temperature: float = 1.0
    ) -> Prediction:
        """Run all chunks of a prompt that is alone, or all blocks, cut as the scheduler does."""
        run = self.prefill if self.limits.longest_prefill else self.extend
        for start, end in self.limits.cuts(len(prompt)):
            prediction = run(slot, prompt, start, end, temperature)
        for index in range(self.limits.repeated_chunks(len(prompt))):
            prediction = self.repeat(slot, prompt, index)
        return prediction

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Temperatures | None = None,
    ) -> Predictions:
        """Run one token of each of the first n batch slots; each argument is [n].

        input_ids [n,q], of `limits.tokens_per_step` tokens: several of each, position_ids being the
        first one's. The prediction of a token holds if all tokens before it were right. `accept`
        has to follow for every batch slot in use; the other tokens are forgotten.

        Idle batch slots take zeros, and their contents are lost: a prompt's last chunk rewrites
        them. temperature, above 0: for builds with top tokens; None for 1 in all slots.
        """
        self._require_decode()
        predictions = self._decode.run(input_ids, position_ids, prompt_length, temperature)
        self._decoded(prompt_length, position_ids + 1)
        if self._mtp:
            states = self._decode.hidden_states(several=input_ids.ndim > 1)
            self._mtp.decoded(states, input_ids, position_ids, prompt_length)
        return predictions

    def draft(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> Integers:
        """Return the token that is likely to follow each one that `decode` takes next, int64 [n].

        For `limits.drafts`: by multi-token prediction. Arguments: as in `decode`, [n] each. -1 for
        idle batch slots, and where nothing was run here yet, as after `adopt_row`.
        """
        self._require_decode()
        assert self._mtp, "the executor has no graphs of multi-token prediction"
        return self._mtp.draft(input_ids, position_ids, prompt_length)

    def accept(self, slot: int, count: int) -> None:
        """Keep the first `count` tokens, 1 at least, of those that `decode` ran for a slot."""
        self._held[1, slot] += count - 1
        if self._decode.places:
            self._decode.places.accept(slot, count, self.limits.tokens_per_step)
        if self._mtp:
            self._mtp.accept(slot, count)

    def move(self, source: int, target: int) -> None:
        """Copy a batch slot's caches over another's. The source is idle from then on."""
        self._require_open()
        self._copy_row(source, target)
        self._held[:, target] = self._held[:, source]
        if self._decode.places:
            self._decode.places.move(source, target)
        if self._mtp:
            self._mtp.move(source, target)
        self.release(source)
        if self._last_prefilled == source:
            self._last_prefilled = target

    def _copy_row(self, source: int, target: int) -> None:
        for over, row in zip(self._rows[target], self._rows[source], strict=True):
            self._memory.copy(over, row)

    @property
    def role(self) -> Role:
        """Which graphs are loaded."""
        return self._graphs.role

    def export_row(self, slot: int) -> Row:
        """Describe what the batch slot holds. Nothing is copied: it is valid while that stays.

        Raises UserError for an idle batch slot.
        """
        self._require_open()
        prompt_length, position = map(int, self._held[:, slot])
        if not prompt_length:
            raise UserError(f"batch slot {slot} holds no prompt", "prefill one into it first")
        if self._decode.places and position > prompt_length:
            raise UserError(
                f"batch slot {slot} has decoded {position - prompt_length} tokens: a build with "
                "--tokens-per-step hands a prompt over before that",
                "hand it over right after prefill",
            )
        row = self._rows[slot]
        self._memory.synchronize()  # others read it past this executor's stream
        return Row(self._digest, place_of(row), tuple(row), prompt_length, position)

    def require_adoptable(self, row: Row) -> None:
        """Raise UserError for a row of another build, or with missing bytes. Changes nothing."""
        require_adoptable(row, self._digest, self._rows[0], self.limits.positions)

    def adopt_row(self, slot: int, row: Row) -> None:
        """Copy another executor's row into an idle batch slot, to be decoded from then on.

        Raises UserError for a row that does not fit and for a batch slot in use; nothing is changed
        then.
        """
        self._require_open()
        self.require_adoptable(row)
        if self._held[0, slot]:
            raise UserError(f"batch slot {slot} is in use", "take another one, or release it first")
        for target, source in zip(self._rows[slot], row.buffers, strict=True):
            self._memory.copy(target, source)
        self._memory.synchronize()  # the source may be written again from now on
        self._hold(slot, row.prompt_length)
        self._held[1, slot] = row.next_position
        if self._mtp:  # the row's owner has the hidden states
            self._mtp.begin(slot, row.next_position)

    def _hold(self, slot: int, prompt_length: int) -> None:
        """Note that a batch slot holds a prompt, and nothing that was decoded."""
        self._held[:, slot] = prompt_length
        if self._decode.places:
            self._decode.places.fill(slot, prompt_length)

    def _decoded(self, prompt_length: Integers, next_position: Integers) -> None:
        """Note what the first n batch slots hold after a step; others that it ran are idle."""
        count = len(prompt_length)
        self._held[:, : self._decode.size(count)] = 0
        self._held[:, :count] = prompt_length, next_position

    def release(self, slot: int) -> None:
        """Say that a batch slot is idle. Its contents stay until something is written there."""
        self._held[:, slot] = 0

    def row_buffers(self, slot: int) -> tuple[Buffer, ...]:
        """The batch slot's part of every cache: addresses that never change."""
        return tuple(self._rows[slot])

    def new_row(self) -> tuple[Buffer, ...]:
        """Allocate buffers like a batch slot's, for a row to land in before `adopt_row`."""
        self._require_open()
        return tuple(
            self._memory.allocate(TensorSpec(name=one.name, dtype=one.dtype, shape=[*one.shape]))
            for one in self._rows[0]
        )

    def clear(self, slot: int) -> None:
        """Zero the caches that the batch slot's prompt filled, since it may have left NaN there.

        Masked attention multiplies stale entries by 0, and 0 * NaN would reach later prompts. The
        prompt cache is cleared too, unless another prompt came since. Other batch slots, a prompt
        half-way through prefill and the last predictions stay as they are.
        """
        self._require_open()
        for row in self._rows[slot]:
            self._memory.zero(row)
        if self._mtp:
            self._mtp.begin(slot, 0)
        self.release(slot)
        if self._prefill and slot == self._last_prefilled:
            self._prefill.clear()

    def compress(self, slot: int, prompt_length: int) -> None:
        """Fill a batch slot from the prompt cache once more: to measure the step by itself.

        That is the compress step, or a copy where nothing is compressed.
        """
        self._require_open()
        assert self.prompt_cache, "a single shot compresses inside its prefill"
        assert self._prompts, "an executor that decodes alone compresses nothing"
        self._prompts.into_slot.fill(slot, prompt_length)

    def topk_positions(self) -> list[Integers] | None:
        """Return what the last prompt kept, int64 [Hkv,K] for each layer, -1 where unused.

        With head groups K is the largest of the layer's. None where nothing is compressed.
        """
        if self._graphs.full_cache:
            return None
        self._require_open()
        kept = self._prompts.kept if self._prompts else {}
        return kept_of_layers(self._memory, kept, self._manifest)

    def close(self) -> None:
        """Free the device's memory now. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._decode.close()
            self._prompts = self._prefill = self._blocks = self._mtp = None
            self.backend.close()

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceError("the executor was closed")

    def _require_prefill(self) -> Prefill:
        self._require_open()
        if self._prefill is None:
            raise UserError("this executor decodes alone", 'open it with role="both" or "prefill"')
        return self._prefill

    def _require_blocks(self) -> Blocks:
        self._require_open()
        assert self._blocks, "the executor has no extend graph"
        return self._blocks

    def _make_prompts(self, cache: PromptCache | None) -> PromptGraphs | None:
        if not self._graphs.prefill or self.role == "decode":
            return None
        rows = [self._decode.slot_rows.own(slot) for slot in range(self.limits.batch)]
        decode = self._decode.buffers
        return PromptGraphs(
            self._manifest, self._graphs, self.backend, self._weights, decode, rows, cache
        )

    def _make_blocks(self) -> Blocks | None:
        if self._graphs.extend not in self._graphs.all:
            return None
        entry, geometry = self._manifest.graphs["extend"], self._manifest.geometry
        return Blocks(self.backend, entry, self._weights, self._rows, geometry)

    def _require_decode(self) -> None:
        self._require_open()
        if self.role == "prefill":
            raise UserError("this executor prefills alone", 'open it with role="both" or "decode"')
