"""What `diff` found, as a table."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from snapexport.commands.console import OUT
from snapexport.contract.build_directory import Build

if TYPE_CHECKING:
    from snapexport.accuracy.difference import Difference


def print_differences(build: Build, found: "list[Difference]", commands: Path) -> None:
    """A row per sequence, output and pair, and how to repeat it."""
    table = Table("prompt", "output", "compared", "max error", "top-1", "KL", "", box=None)
    for column in table.columns:
        column.no_wrap = column.header != "compared"  # names of two runners can be long
    for difference in found:
        table.add_row(*_cells(difference))
    OUT.print(table)
    if not build.has_baseline and build.manifest.geometry.compresses:
        OUT.print("the build has no full-cache graphs to compare: build it with --baseline")
    OUT.print(Text("repeat it without snapexport: ").append(str(commands), style="bold"))


def _cells(one: "Difference") -> tuple[str, ...]:
    return (
        str(one.prompt_length),
        one.output.removesuffix(".logits"),
        f"{one.runner} to {one.reference}",
        f"{one.distance.max_abs_error:.2g}",
        f"{one.distance.top1_agreement:.3f}",
        f"{one.distance.kl_divergence:.2g}",
        _verdict(one),
    )


def _verdict(one: "Difference") -> str:
    if one.quantized:
        return "[yellow]quantized[/]"
    if not one.lossless:
        return "[yellow]compressed[/]"
    return "[red]DIFFERS[/]" if one.broken else "[green]equal[/]"
