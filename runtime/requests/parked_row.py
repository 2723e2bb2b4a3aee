"""A prompt and its row on the host, for prompts that begin with it."""

from dataclasses import dataclass

from snapexport.runtime.engine.rows import Row

Key = tuple[str, tuple[int, ...]]
"""A session, and the tokens of a prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class ParkedRow:
    """row: before any decode step. session: whose requests may go on from it."""

    token_ids: tuple[int, ...]
    row: Row
    session: str = ""

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.session, self.token_ids


def begins(key: Key, other: Key) -> bool:
    """Whether a prompt is the other's beginning, or the same, in one session."""
    (session, tokens), (others, longer) = key, other
    return session == others and longer[: len(tokens)] == tokens
