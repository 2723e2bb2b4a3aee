"""The input of a plan, and the command that builds a choice."""

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.builder import BuildOptions
from snapexport.builder.options import graph_fields
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.memory import size
from snapexport.errors import UserError, flag_of
from snapexport.methods import table

_CHOSEN = ("policy", "kv_budget", "batch", "prefill_chunk")
_LIKE = "write it like 80GiB, 24GB or 512M"


@dataclass(frozen=True)
class PlanRequest:
    """memory: all bytes of the machine. given: fields of BuildOptions; the plan chooses the others.

    `model` and `L_max` are required. None: not given. bound: that of a process which runs an
    alternative with a batch, as `nbytes`; None: it has none, and the peak is estimated.
    """

    memory: int
    given: Mapping[str, Any]
    bound: Callable[[Any, int], Any] = lambda alternative, batch: None

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise UserError(f"--memory {self.memory} leaves nothing", _LIKE)
        known = {field.name for field in dataclasses.fields(BuildOptions)} | set(graph_fields())
        assert set(self.given) <= known, f"no options of build: {set(self.given) - known}"

    def __getitem__(self, name: str) -> Any:
        """The given value of a field, or None."""
        return self.given.get(name)

    def with_given(self, **fields: Any) -> "PlanRequest":
        """A copy with further fields given."""
        return dataclasses.replace(self, given={**self.given, **fields})

    def build_options(self, **chosen: Any) -> BuildOptions:
        """The given fields with the plan's choices. Raises UserError if they contradict."""
        fields = {name: value for name, value in self.given.items() if value is not None}
        return BuildOptions.of(**{"out": self.out} | fields | chosen)

    @property
    def graph(self) -> GraphOptions:
        """The graph options that are given."""
        return table.graph_options({k: v for k, v in self.given.items() if v is not None})

    @property
    def out(self) -> Path:
        """The --out of the recommended command."""
        given = Path(str(self["model"])).expanduser()
        named = given.resolve() if given.name in ("", "..") else given
        name = named.name.removesuffix(".gguf")
        return Path(f"{name or 'model'}.build")


def parse_memory(text: str) -> int:
    """Bytes of --memory. Raises UserError."""
    try:
        nbytes = size(text)
    except ValueError:
        raise UserError(f"--memory '{text}' is not a size", _LIKE) from None
    if nbytes < 1:
        raise UserError(f"--memory {text} leaves nothing", _LIKE)
    return nbytes


def command(options: BuildOptions) -> str:
    """`snapexport build ...`, with every flag that is not at its default."""
    words = ["snapexport", "build"]
    for field, value in _field_values(options):
        if value is True:
            words.append(flag_of(field.name))
        elif value is False and field.default is None:
            words.append("--no-" + flag_of(field.name).removeprefix("--"))
        elif value != field.default or field.name == "batch":
            several = value if isinstance(value, tuple) else (value,)
            words += [flag_of(field.name), *map(str, several)]
    return shlex.join(words)


def _field_values(options: BuildOptions) -> Iterator[tuple["dataclasses.Field[Any]", Any]]:
    """The fields and their values; a graph option is at its default if the rest implies it."""
    for field in dataclasses.fields(options):
        if field.name != "graph":
            yield field, getattr(options, field.name)
    for field in dataclasses.fields(GraphOptions):
        if field.name != "methods":
            default: Any = field.default
            without = dataclasses.replace(options.graph, **{field.name: default})
            is_implied = dataclasses.replace(options, graph=without) == options
            yield field, default if is_implied else getattr(options.graph, field.name)
    for own in options.graph.methods:
        yield from ((field, getattr(own, field.name)) for field in dataclasses.fields(own))


def chosen_flags(options: BuildOptions) -> str:
    """The flags that a plan chooses."""
    chosen = ((name, getattr(options, name)) for name in _CHOSEN)
    return " ".join(
        f"{flag_of(name)} {value}"
        for name, value in chosen
        if value not in (None, BuildOptions.policy)
    )
