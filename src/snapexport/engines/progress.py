"""What building engines tells of itself while it runs."""

from typing import Protocol


class Progress(Protocol):
    """Told what is going on."""

    def stage(self, text: str) -> None:
        """What begins, or how far it is. May be called by TensorRT's threads."""


class Silent:
    """Tells nobody."""

    def stage(self, text: str) -> None:
        pass
