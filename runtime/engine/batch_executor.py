"""Defines what runs requests in batch slots: one executor, or the first of several ranks."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from snapexport.contract.pieces import Piece
from snapexport.runtime.arrays import Floats, Integers
from snapexport.runtime.engine.followers import Drafts
from snapexport.runtime.engine.graph_set import Role
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.parking import Parking
from snapexport.runtime.engine.predictions import Prediction, Predictions
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.rows import Rows


class BatchExecutor(Protocol):
    """`Executor` says what the methods do.

    rows, parking, drafts: what only some can do; None elsewhere.
    """

    limits: Limits
    captured: bool
    prompt_cache: PromptCache | None

    @property
    def drafters(self) -> "Sequence[Callable[[BatchExecutor], Any]]":
        """Make what guesses tokens for requests, or None."""

    @property
    def role(self) -> Role:
        """Which graphs are loaded."""

    @property
    def rows(self) -> Rows | None:
        """What the batch slots hold, to be handed over."""

    @property
    def parking(self) -> Parking | None:
        """Copies rows to the host, and goes on from them."""

    @property
    def drafts(self) -> Drafts | None:
        """Drafts tokens by graphs."""

    def take(
        self, slot: int, prompt: Sequence[int], piece: Piece, temperature: float = 1.0
    ) -> Prediction: ...

    def prefill_prompt(
        self, slot: int, prompt: Sequence[int], temperature: float = 1.0
    ) -> Prediction: ...

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Floats | None = None,
    ) -> Predictions: ...

    def accept(self, slot: int, count: int) -> None: ...

    def move(self, source: int, target: int) -> None: ...

    def release(self, slot: int) -> None: ...

    def clear(self, slot: int) -> None: ...

    def compress(self, slot: int, prompt_length: int) -> None: ...

    def topk_positions(self) -> list[Integers] | None: ...

    def close(self) -> None: ...
