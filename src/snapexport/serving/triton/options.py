"""Options of `snapexport triton`, validated once."""

from dataclasses import dataclass
from pathlib import Path

from snapexport.serving.options import ModelOptions
from snapexport.serving.triton.interface import UNARY_SUFFIX, Device


@dataclass(frozen=True)
class RepositoryOptions(ModelOptions):
    """A build, and the models that serve it. device None: gpu if the build has TensorRT engines."""

    out: Path
    device: Device | None = None
    copy: bool = False
    overwrite: bool = False

    @property
    def unary_name(self) -> str:
        """The name of the unary model."""
        return self.model_name + UNARY_SUFFIX
