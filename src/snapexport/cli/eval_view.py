"""An evaluation's report as tables: caches down, tasks across."""

from typing import Any

from rich.table import Table

from snapexport.cli.console import OUT

_HEADINGS = {
    "aware": "question in the prompt",
    "agnostic": "question after compression",
    "late": "asked again when the ring holds other text",
}
BAD, POOR = 0.5, 0.9


def print_report(report: dict[str, Any]) -> None:
    """A table for each mode and length, and the vote's hit rates."""
    options = report["options"]
    for mode in options["modes"]:
        for length in options["lengths"]:
            rows = [r for r in report["results"] if (r["mode"], r["length"]) == (mode, length)]
            _print_scores(f"{length} tokens, {_HEADINGS[mode]}", rows)
    OUT.print("[dim]accuracy, and its standard error; rest: answers right after the first token[/]")
    for rate in report["hit_rate"]:
        _print_hit_rate(rate)
    if options["hit_samples"] and not report["hit_rate"]:
        OUT.print("[dim]no hit rate: no cache votes, or the model soft-caps its attention[/]")


def _print_scores(title: str, rows: list[dict[str, Any]]) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("cache")
    table.add_column("slots", justify="right")
    for heading in (*tasks, "mean", "rest"):
        table.add_column(heading, justify="right")
    for cache in dict.fromkeys((row["contestant"], row["slots"]) for row in rows):
        own = [row for row in rows if (row["contestant"], row["slots"]) == cache]
        table.add_row(cache[0], str(cache[1]), *map(_score, own), _mean(own), _rest(own))
    OUT.print(table)
    OUT.print()


def _score(row: dict[str, Any]) -> str:
    spread = "" if row["stderr"] is None else f" [dim]±{row['stderr']:.2f}[/]"
    return _coloured(row["score"]) + spread


def _mean(rows: list[dict[str, Any]]) -> str:
    return f"[bold]{_coloured(sum(row['score'] for row in rows) / len(rows))}[/]"


def _rest(rows: list[dict[str, Any]]) -> str:
    return f"{sum(row['after_first'] for row in rows) / len(rows):.3f}"


def _coloured(score: float) -> str:
    colour = "red" if score < BAD else "yellow" if score < POOR else "green"
    return f"[{colour}]{score:.3f}[/]"


def _print_hit_rate(rate: dict[str, Any]) -> None:
    layers = ", ".join("-" if one is None else f"{one:.2f}" for one in rate["by_layer"])
    OUT.print(
        f"[bold]hit rate[/] of {rate['contestant']} with {rate['slots']} slots, by layer: {layers} "
        f"[dim](attention above {rate['theta']}, {rate['prompts']} prompts)[/]"
    )
