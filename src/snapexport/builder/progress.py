"""Reports the stages of a build while it runs."""

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a build."""

    def stage(self, text: str) -> None:
        """A new stage of the work begins."""

    def note(self, text: str) -> None:
        """The build leaves something out, as is told."""

    def written(self, nbytes: int) -> None:
        """So many more bytes of weights were written."""


class Silent:
    """Shows nothing."""

    def stage(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def written(self, nbytes: int) -> None:
        pass
