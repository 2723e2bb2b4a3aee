"""What a bench does and in which order, decided and refused before anything is loaded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from snapexport.bench.contender import Entrant
from snapexport.bench.options import BenchOptions
from snapexport.contract.errors import UserError


@dataclass(frozen=True)
class Visit:
    """A contender at one context: prefill the slots, then decode with fewer and fewer of them."""

    round: int
    contender: int
    context: int


@dataclass(frozen=True)
class Plan:
    """contexts ascending; batches descending, since an idle slot loses what it held."""

    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    decode_steps: int
    repeat: int
    seed: int

    @classmethod
    def of(cls, options: BenchOptions, entrants: Sequence[Entrant]) -> "Plan":
        """Check that every entrant can do what is asked. Raises UserError."""
        most = min(entrant.batch for entrant in entrants)
        batches = tuple(sorted(options.batches or {1, most}, reverse=True))
        room = options.decode_steps * len(batches)
        contexts = tuple(sorted(options.contexts or _default_contexts(entrants, room)))
        _require_slots(batches[0], most)
        for entrant in entrants:
            _require_positions(contexts[-1], room, entrant)
        return cls(contexts, batches, options.decode_steps, options.repeat, options.seed)

    @property
    def slots(self) -> int:
        """How many are prefilled in a visit."""
        return self.batches[0]

    def visits(self, round: int, contenders: int) -> Iterator[Visit]:
        """Those of one round: each contender at each context.

        Every second round goes backwards, so that nobody always comes first or after the same one.
        """
        order = list(product(self.contexts, range(contenders)))
        for context, contender in order if round % 2 == 0 else reversed(order):
            yield Visit(round, contender, context)


def _default_contexts(entrants: Sequence[Entrant], room: int) -> set[int]:
    """A quarter, a half and all of the longest prompt that leaves room for decoding."""
    longest = min(min(one.longest_prompt, one.positions - room) for one in entrants)
    return {max(1, longest // 4), max(1, longest // 2), max(1, longest)}


def _require_slots(asked: int, most: int) -> None:
    if asked > most:
        raise UserError(
            f"--batches {asked} is more than the {most} slots of the build",
            f"use --batches up to {most}, or build it again with --batch {asked}",
        )


def _require_positions(context: int, room: int, entrant: Entrant) -> None:
    if context > entrant.longest_prompt:
        raise UserError(
            f"--contexts {context} is longer than a prompt can be: {entrant.longest_prompt} tokens",
            f"use --contexts up to {entrant.longest_prompt}, or build with a larger --L-max",
        )
    if context + room > entrant.positions:
        raise UserError(
            f"--contexts {context} leaves no room for {room} decoded tokens: the {entrant.name} "
            f"cache ends at position {entrant.positions}",
            f"use --contexts up to {max(1, entrant.positions - room)}, or fewer --decode-steps",
        )
