"""Defines what follows the state of each batch slot, beside its caches or in them.

Every follower hears the same events, and the executor knows none by name. A follower overrides
those that concern it.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from snapexport.contract.pieces import Piece
from snapexport.runtime.engine.backend import Buffer, Integers
from snapexport.runtime.engine.bound_graph import HostArrays


class Step(NamedTuple):
    """The inputs of a decode step of the first n batch slots. Idle ones have zeros.

    input_ids: [n], or [n,q] of several tokens. position_ids: [n], the first token's.
    prompt_length: [n]. hidden_states: [B,q,E] of a build whose graphs output them.
    """

    input_ids: Integers
    position_ids: Integers
    prompt_length: Integers
    hidden_states: Buffer | None


class SlotFollower:
    """State of each batch slot. Every event does nothing here."""

    def begin(self, slot: int, position: int) -> None:
        """The batch slot holds a row from elsewhere, up to a position."""

    def took(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, hidden_states: Buffer | None
    ) -> None:
        """Prompt tokens were taken. hidden_states: [1,C,E]; None if nothing was run for them."""

    def fill(self, slot: int, prompt_length: int) -> None:
        """The batch slot holds a prompt, and nothing that was decoded."""

    def feed(self, arrays: HostArrays) -> None:
        """A decode graph is about to run: write its inputs. The others are there."""

    def decoded(self, step: Step) -> None:
        """The step was run. `accept` follows where it took several tokens."""

    def accept(self, slot: int, count: int) -> None:
        """The first `count` tokens of the step stay, 1 at least; the others are forgotten."""

    def discard(self, slot: int) -> None:
        """A graph ran for another batch slot's sake: what it wrote here is forgotten."""

    def move(self, source: int, target: int) -> None:
        """The batch slot `target` holds what `source` held, which is idle from then on."""

    def clear(self, slot: int) -> None:
        """The batch slot holds nothing. A prompt may have left NaN: zero what is in memory."""

    def release(self, slot: int) -> None:
        """The batch slot is idle."""

    def require_in_caches(self, slot: int, decoded: int) -> None:
        """Raise UserError unless caches and positions say all that another executor needs.

        decoded: tokens of the batch slot after its prompt.
        """


@runtime_checkable
class Drafts(Protocol):
    """A follower that can guess tokens."""

    def draft(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> Integers:
        """Return the likeliest token after each of the first n batch slots' next ones, int64 [n].

        Arguments: those of the decode step that follows, [n] each. `NO_DRAFT` for idle batch slots,
        and where nothing was run yet, as after `Rows.copy_in`.
        """


NO_DRAFT = -1
"""In the place of a draft."""
