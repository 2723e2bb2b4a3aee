"""What a runtime needs of an engine: three verbs, and the limits within which they work.

An engine owns its caches. The caller names slots and never sees a key or a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import Manifest
from snapexport.runtime.predictions import Prediction, Predictions

Integers = NDArray[np.int64]
Temperatures = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can take. Tokens are fed at positions below `positions`.

    decode_batches: how many of the first slots a decode step can run, ascending; the last is
    `batch`. A step of fewer costs as much as the next of these.
    """

    batch: int
    decode_batches: tuple[int, ...]
    prefill_chunk: int
    longest_prompt: int
    positions: int
    vocab_size: int
    eos_token_id: frozenset[int]

    @classmethod
    def of(cls, manifest: Manifest, *, full_cache: bool) -> "Limits":
        """A full cache ends at L_max; a compressed one goes on to the model's own limit."""
        L_max, model = manifest.geometry.L_max, manifest.model
        longest = min(L_max, model.max_position_embeddings)
        return cls(
            batch=manifest.batch,
            decode_batches=tuple(manifest.decode_graphs()),
            prefill_chunk=manifest.prefill_chunk,
            longest_prompt=longest,
            positions=longest if full_cache else model.max_position_embeddings,
            vocab_size=model.vocab_size,
            eos_token_id=frozenset(model.eos_token_id),
        )


class Executor(Protocol):
    """Predictions lie in the engine's own buffers: read them before the next call.

    Temperatures, above 0, are for the top_tokens of builds that have them; the others ignore them.
    """

    @property
    def limits(self) -> Limits:
        """What this engine can take."""
        ...

    def prefill(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float = 1.0,
    ) -> Prediction:
        """Run one chunk of a prompt, from position `past_length` on; what follows its last token.

        The chunk that ends at `prompt_length` also fills decode slot `slot`. The chunks of one
        prompt follow each other, with decode steps but no other prompt between them.
        """
        ...

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Temperatures | None = None,
    ) -> Predictions:
        """Run one token of each of the first n slots, each argument [n].

        Idle slots take zeros, and their contents are lost: a prompt's last chunk rewrites them.
        temperature: None for 1 in all slots; the idle ones take 1 too.
        """
        ...

    def move(self, source: int, target: int) -> None:
        """Copy a slot's caches over another's. The source is idle from then on."""
        ...

    def clear(self, slot: int) -> None:
        """Zero the caches that the slot's prompt filled, since it may have left NaN in them.

        They are the slot's own and, unless another prompt came since, that of prefill: masked
        attention multiplies what lies there by zero, and 0 * NaN would reach every later prompt.
        Other slots, a prompt half-way through prefill and the last predictions stay as they are.
        """
        ...

    def topk_positions(self) -> list[Integers] | None:
        """For each layer what the last prompt kept, [Hkv, K], -1 where unused.

        None where nothing is compressed.
        """
        ...
