"""What every experiment is given: where to work, with how many threads, on which checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.contract.manifest import Quantization
from snapexport.contract.targets import Target
from snapexport.vault import CHECKPOINT

from . import checkpoint
from .builds import Builds

QUICK_CHUNK = 64


@dataclass(frozen=True)
class Setup:
    """work: for checkpoints and builds. quick: the bundled checkpoint, at tiny sizes.

    peers_python, kvpress_python: interpreters that have them; None where there is none.
    """

    work: Path
    threads: int = 2
    quick: bool = False
    peers_python: Path | None = None
    kvpress_python: Path | None = None

    def model(self, name: checkpoint.Name = "small") -> Path:
        """The checkpoint's directory."""
        return CHECKPOINT if self.quick else checkpoint.make(name, self.work / "checkpoints")

    def builds(
        self,
        name: checkpoint.Name = "small",
        weights: Quantization | None = None,
        target: Target = "onnxruntime",
    ) -> Builds:
        """Of that checkpoint."""
        chunk: dict[str, Any] = {"chunk": QUICK_CHUNK} if self.quick else {}
        directory = self.work / "builds"
        return Builds(self.model(name), directory, weights=weights, target=target, **chunk)
