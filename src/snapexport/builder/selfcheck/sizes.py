"""The sizes of a self-check: its prompt, its caches, and the rows of the vocabulary in use."""

from dataclasses import dataclass

_LONGEST = 128


@dataclass(frozen=True)
class Sizes:
    """All of them follow from L_max, the positions of the full-length cache."""

    L_max: int

    @classmethod
    def of(cls, position_limit: int) -> "Sizes":
        """limit: the model's longest sequence."""
        return cls(min(_LONGEST, position_limit))

    @property
    def chunk(self) -> int:
        """Tokens of a prefill chunk: a prompt takes four, of which the last overlaps."""
        return self.L_max // 4

    @property
    def prompt(self) -> int:
        return self.L_max * 25 // 32

    @property
    def steps(self) -> int:
        """Tokens that are decoded after the prompt."""
        return max(1, self.L_max // 16)

    @property
    def window(self) -> int:
        """Positions that a sliding layer sees, where the model's own window is wider."""
        return max(2, self.L_max * 3 // 16)

    @property
    def vocabulary(self) -> int:
        return _LONGEST
