"""What a build tells of itself while it runs."""

from typing import Protocol


class Progress(Protocol):
    """Told what is going on."""

    def stage(self, text: str) -> None:
        """A new stage of the work begins."""

    def converted(self, nbytes: int) -> None:
        """So many more bytes of weights were converted."""


class Silent:
    """Tells nobody."""

    def stage(self, text: str) -> None:
        pass

    def converted(self, nbytes: int) -> None:
        pass
