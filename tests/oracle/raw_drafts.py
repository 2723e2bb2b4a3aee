"""Runs a build's graphs of multi-token prediction by the documented contract, as `raw` the others.

Names and numbers here are the contract's: nothing of the package is used.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from .raw import Array, RawBuild, Session, Slots, padded, prefill_and_compress, run

Ring = list[Array]
"""Keys and values of the layer, [B, Hkv, R, D]."""
Chunks = dict[int, Array]
"""{first position: hidden states [1, C, E]} of a prompt's chunks."""

_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class RawDrafts:
    """The graphs `mtp` and `mtp-prefill` of one build."""

    def __init__(self, build: RawBuild) -> None:
        self.build = build
        self._caches = [f"past_key_values.{build.layers}.{part}" for part in ("key", "value")]

    @cached_property
    def step_session(self) -> Session:
        return self.build.session("mtp")

    @cached_property
    def prefill_session(self) -> Session:
        return self.build.session("mtp-prefill")

    def empty(self, session: Session, fill: float = 0.0) -> Ring:
        inputs = {value.name: value for value in session.get_inputs()}
        return [
            np.full(inputs[name].shape, fill, _NUMPY[inputs[name].type]) for name in self._caches
        ]

    def prefill(self, prompt: Sequence[int], chunks: Chunks, stale: float = 0.0) -> Ring:
        """The ring [1, Hkv, R, D] after a prompt: of all its tokens but the first."""
        ring, chunk = self.empty(self.prefill_session, stale), self.build.chunk
        for start, states in chunks.items():
            ids = prompt[start + 1 : start + 1 + chunk]
            feeds = {
                "input_ids": padded(ids, chunk, 0),
                "past_length": np.array([start]),
                "chunk_length": np.array([len(ids)]),
                "hidden_states": states,
            }
            ring = self._present(run(self.prefill_session, feeds | self._past(ring)))
        return ring

    def step(
        self, ids: Sequence[int], positions: Sequence[int], states: Array, ring: Ring
    ) -> tuple[Array, Array, Ring]:
        """Logits [B, V], the next hidden states [B, 1, E] and the ring."""
        feeds = {
            "input_ids": np.array(ids)[:, None],
            "position_ids": np.array(positions)[:, None],
            "hidden_states": states,
        }
        out = run(self.step_session, feeds | self._past(ring))
        return out["logits"], out["next_hidden_states"], self._present(out)

    def _past(self, ring: Ring) -> dict[str, Array]:
        return dict(zip(self._caches, ring, strict=True))

    def _present(self, out: dict[str, Array]) -> Ring:
        return [out[name.replace("past_key_values", "present")] for name in self._caches]


class DraftSlots:
    """Batch slots that decode, each with its drafts. A build's first prompt fills unused ones."""

    def __init__(self, build: RawBuild, prompts: Sequence[Sequence[int]]) -> None:
        self.drafts = RawDrafts(build)
        requests = [prefill_and_compress(build, prompt)[1] for prompt in prompts]
        self.slots = Slots(build, requests)
        rows = [
            (self.drafts.prefill(prompt, states), _last_states(states, len(prompt)))
            for prompt, states in zip(prompts, [r.hidden_states for r in requests], strict=True)
        ]
        rows += rows[:1] * (build.batch - len(rows))
        rings = zip(*(ring for ring, _ in rows), strict=True)
        self.ring = [np.concatenate(parts) for parts in rings]
        self.states = np.concatenate([states for _, states in rows])

    def step(self, tokens: Sequence[int]) -> tuple[Array, Array, Array, Array]:
        """Feed the newest token of each -> drafts' logits and hidden states, the model's own.

        The draft is of the token after the one that the model tells in the same step.
        """
        count = len(tokens)
        ids = [*tokens] + [tokens[0]] * (len(self.states) - count)
        drafted, following, self.ring = self.drafts.step(
            ids, self.slots.positions, self.states, self.ring
        )
        logits = self.slots.step(tokens)
        self.states = self.slots.hidden_states
        return drafted[:count], following[:count, 0], logits, self.states[:count, 0]


def _last_states(chunks: Chunks, length: int) -> Array:
    """Hidden states [1, 1, E] of a prompt's last token."""
    start, states = next(reversed(chunks.items()))
    row = length - 1 - start
    return states[:, row : row + 1]
