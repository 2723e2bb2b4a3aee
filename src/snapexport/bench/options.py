"""The options of `snapexport bench BUILD`. The command line's flags are made from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.contract.errors import UserError


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Every choice of `snapexport bench` without a server. None: chosen from the build.

    contexts: tokens of the prompts. batches: active batch slots. decode_steps: timed steps in a
    row, in each of `repeat` rounds.
    """

    contexts: tuple[int, ...] | None = None
    batches: tuple[int, ...] | None = None
    decode_steps: int = 16
    repeat: int = 5
    baseline: bool = False
    threads: int | None = None
    prepack: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("contexts", "batches"):
            require_numbers(name, getattr(self, name))
        for name, least in (("decode_steps", 1), ("repeat", 1), ("seed", 0)):
            require_at_least(name, getattr(self, name), least)
        if self.threads is not None:
            require_at_least("threads", self.threads, 1)


def require_numbers(name: str, given: Sequence[int] | None) -> None:
    """Raise UserError for an empty list, a number below 1 or a repeated number. None passes."""
    if given is None:
        return
    if not given:
        raise UserError(f"{_flag(name)} is empty", "give one or more, or leave it out")
    for number in given:
        require_at_least(name, number, 1)
        if given.count(number) > 1:
            raise UserError(f"{_flag(name)} has {number} twice", "give it once")


def require_at_least(name: str, number: int, least: int) -> None:
    """Raise UserError for a number below `least`."""
    if number < least:
        raise UserError(f"{_flag(name)} {number} is below {least}", f"use {least} or more")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
