"""Defines what a cache method does at run time: the base of every `methods/*/run.py`.

    takers       carry out its kinds of prefill work
    followers    have state for each batch slot
    drafters     guess tokens for requests

A taker is made if its graph is loaded. It may use those that were made before it: a second vote
runs chunks, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from snapexport.contract.manifest import Manifest
from snapexport.contract.pieces import Piece
from snapexport.methods import table
from snapexport.runtime.engine.backend import Buffer, Buffers, GraphBackend
from snapexport.runtime.engine.bound_graph import MakePrediction, Prediction
from snapexport.runtime.engine.decode_steps import DecodeSteps
from snapexport.runtime.engine.followers import Drafts, SlotFollower
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.rows import Row, Rows


@dataclass(frozen=True)
class Loaded:
    """A build's graphs in a backend, of which takers and followers are made.

    weights: those that the graphs take as inputs, in the backend's memory.
    decode: owns the caches of all batch slots.
    prompt_cache: another executor's of the same model, on the same device.
    """

    manifest: Manifest
    graphs: GraphSet
    backend: GraphBackend
    weights: Buffers
    limits: Limits
    decode: DecodeSteps
    rows: Rows
    prompt_cache: PromptCache | None


class Taker(Protocol):
    """Takes the pieces of one kind of prefill work, in their order."""

    hidden_states: Buffer | None
    """The latest piece's, [1,C,E], if graphs output them; None if nothing was run for it."""

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Run a piece; a prompt's last one fills the batch slot, or leaves it to the cache.

        The prediction is of the token after the piece, or after the prompt if the cache has that.
        """

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The position that each cache slot holds after a last piece, by extend's input names."""

    def clear(self) -> None:
        """Zero what a prompt may have left NaN in, beside the batch slot."""


@runtime_checkable
class Refills(Protocol):
    """A taker that can fill a batch slot from its last prompt once more.

    cache: the prompt cache; None where a run takes a whole prompt. kept: outputs of the compress
    step, the vote's positions among them; empty where nothing is compressed.
    """

    cache: PromptCache | None
    kept: Buffers

    def refill(self, slot: int, prompt_length: int) -> None:
        """Compress into the batch slot, or copy where nothing is compressed."""

    def leave_unfilled(self, slot: int | None = None) -> None:
        """Nobody needs what the last prompt has yet to fill: this batch slot; None: whichever."""


@runtime_checkable
class Resumes(Protocol):
    """A taker whose next piece may follow a row that was parked."""

    def resume(self, row: Row) -> None:
        """Go on from a parked row."""


Takers = Mapping[str, Taker]
"""By the kind of their pieces."""

MakeTaker = Callable[[Loaded, Takers], Taker | None]
"""Makes a taker beside those made before it; None where its graph is not loaded."""

MakeFollower = Callable[[Loaded], SlotFollower | None]
"""Makes a follower, or None where a build has nothing to follow."""

MakeDrafter = Callable[[Drafts | None], Any]
"""Makes a drafter (`requests/speculation.py`), or None where it needs graphs that draft."""


class MethodRun:
    """Does nothing. A method overrides what it does.

    takers: what takes its pieces of prefill work, by their kind. followers: what has state for each
    batch slot. drafters: what guesses tokens for requests. predict: makes predictions of the
    outputs that its record names as `likeliest`.
    """

    takers: Sequence[tuple[str, MakeTaker]] = ()
    followers: Sequence[MakeFollower] = ()
    drafters: Sequence[MakeDrafter] = ()
    predict: MakePrediction | None = None


def runs(manifest: Manifest) -> list[MethodRun]:
    """The run parts of a build's methods, in the table's order."""
    methods = table.methods_on(manifest.geometry, manifest.graph_options)
    return [found for method in methods if (found := method.part("run"))]
