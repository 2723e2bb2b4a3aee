"""What a plan is asked for: the choices of `build` that are made already, and the memory."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.builder import BuildOptions
from snapexport.contract.errors import UserError


@dataclass(frozen=True)
class PlanOptions:
    """memory: bytes of all. given: BuildOptions' fields by name; None and what is left out: chosen.

    `model` and `L_max` have to be given.
    """

    memory: int
    given: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise UserError(f"--memory {self.memory} leaves nothing", "write it like 80GiB")
        known = {field.name for field in dataclasses.fields(BuildOptions)}
        assert set(self.given) <= known, f"no options of build: {set(self.given) - known}"

    def __getitem__(self, name: str) -> Any:
        """As given, or None."""
        return self.given.get(name)

    def build_options(self, **chosen: Any) -> BuildOptions:
        """These with what was chosen for the rest. Raises UserError where they contradict."""
        fields = {name: value for name, value in self.given.items() if value is not None}
        return BuildOptions(**{"out": self.out} | fields | chosen)

    @property
    def out(self) -> Path:
        """Where the recommended command would build."""
        name = Path(str(self["model"])).expanduser().resolve().name
        return Path(f"{name or 'model'}.build")
