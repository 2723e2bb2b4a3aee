"""A choice as the command that builds it."""

import dataclasses
import shlex

from snapexport.builder import BuildOptions
from snapexport.builder.presets import flag_of

_CHOSEN = ("policy", "kv_budget", "batch", "prefill_chunk")


def command(options: BuildOptions) -> str:
    """`snapexport build ...`, with every flag that is not at its default."""
    words = ["snapexport", "build"]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is True:
            words.append(flag_of(field.name))
        elif value != field.default or field.name == "batch":
            words += [flag_of(field.name), str(value)]
    return shlex.join(words)


def chosen_flags(options: BuildOptions) -> str:
    """The flags that a plan chooses."""
    chosen = ((name, getattr(options, name)) for name in _CHOSEN)
    return " ".join(
        f"{flag_of(name)} {value}"
        for name, value in chosen
        if value not in (None, BuildOptions.policy)
    )
