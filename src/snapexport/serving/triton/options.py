"""Options of `snapexport triton`, validated once."""

from dataclasses import dataclass
from pathlib import Path

from snapexport.serving.options import (
    ServeOptions,
    model_name,
    require_at_least,
    require_name,
)
from snapexport.serving.triton.interface import UNARY_SUFFIX, Device


@dataclass(frozen=True)
class RepositoryOptions:
    """A build, and the models that serve it.

    None: name: the build directory's; device: gpu if the build has TensorRT engines; threads and
    token_budget: the runtime's default.
    """

    build: Path
    out: Path
    name: str | None = None
    device: Device | None = None
    max_pending: int = ServeOptions.max_pending
    threads: int | None = None
    token_budget: int | None = None
    copy: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        require_name(self.model_name)
        require_at_least("--max-pending", self.max_pending, 0)
        require_at_least("--threads", self.threads, 1)
        require_at_least("--token-budget", self.token_budget, 1)

    @property
    def model_name(self) -> str:
        """The name of the streaming model."""
        return model_name(self.build, self.name)

    @property
    def unary_name(self) -> str:
        """The name of the unary model."""
        return self.model_name + UNARY_SUFFIX
