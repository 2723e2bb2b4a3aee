"""What `diff` found, as a table."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from snapexport.cli.console import OUT
from snapexport.contract.build_directory import Build

if TYPE_CHECKING:
    from snapexport.eval.accuracy.difference import Difference

_COMPRESSED = "[yellow]compressed[/]"


def print_differences(build: Build, found: "list[Difference]", commands: Path) -> None:
    """A row per sequence, output and pair, and how to repeat it."""
    table = Table("prompt", "output", "compared", "max error", "top-1", "KL", "", box=None)
    for column in table.columns:
        column.no_wrap = column.header != "compared"  # names of two runners can be long
    for difference in found:
        table.add_row(*_cells(difference))
    OUT.print(table)
    OUT.print(Text(_legend(build, found), style="dim"))
    if not build.has_baseline and build.manifest.geometry.compresses:
        OUT.print("the build has no full-cache graphs to compare: build it with --baseline")
    OUT.print(Text("repeat it without snapexport: ").append(str(commands), style="bold"))


def _legend(build: Build, found: "list[Difference]") -> str:
    """What the last column says, as far as it says it here."""
    from snapexport.eval.accuracy.difference import tolerance

    dropped, bound = (
        "nothing was dropped, and",
        f"differs by more than {tolerance(build.manifest):g}",
    )
    meanings = {
        "equal": any(one.lossless and one.passed for one in found)
        and f"{dropped} no logit {bound}",
        "DIFFERS": any(one.broken for one in found) and f"{dropped} a logit {bound}",
        "compressed": any(_verdict(one) == _COMPRESSED for one in found)
        and "what the smaller cache costs",
        "rounded": any(one.rounded for one in found)
        and f"what a cache in {build.manifest.cache_dtype} costs",
        "quantized": any(one.quantized for one in found) and "what 4-bit weights cost",
    }
    return "; ".join(f"{word}: {meaning}" for word, meaning in meanings.items() if meaning)


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
    if one.rounded:
        return "[yellow]rounded[/]"
    if not one.lossless:
        return _COMPRESSED
    return "[red]DIFFERS[/]" if one.broken else "[green]equal[/]"
