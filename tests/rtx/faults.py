"""What the lint and the real library say of small graphs (`small/`).

PYTHONPATH=. python -m tests.rtx.faults    writes docs/reference/lint-agreement.md
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from snapexport.graphs.lint import lint_model, table_for
from tests.rtx.library import Answer, ask_all
from tests.rtx.small import graphs
from tests.rtx.small.types import NAMES, surveyed

PAGE = Path("docs/reference/lint-agreement.md")


@dataclass(frozen=True)
class Row:
    """One graph. rules: of the lint's findings. library: what the real one said, in a line."""

    name: str
    rules: tuple[str, ...]
    accepted: bool
    library: str

    @property
    def agrees(self) -> bool:
        return self.accepted is not bool(self.rules)


EXPLAINED = {
    "valid lengths of keys": "dropped without a word: invalid cache slots are attended to",
    "a chunk under is_causal": "taken, but row i sees the first i + 1 columns",
    "one row under is_causal": "taken, but the row sees the first column alone",
    "an input in fp64": "taken for fp32: the buffer is misread",
    "Cast to fp64": "taken for fp32: the buffer is misread",
    "opset 8": "taken, but the parser's documents begin with 9",
    "a weight in fp4, blocks of 32": "8.9 has no fp4; 12.0 takes it",
    "TRT_Attention, lengths of keys": "taken, and reported to give wrong tokens",
}
"""Graphs of which the two say different things on purpose."""


@cache
def rows() -> tuple[Row, ...]:
    """Every graph, with what the lint and the library say."""
    table = table_for(None, "tensorrt-rtx")
    names, models = zip(*graphs(), strict=True)
    found = []
    for name, model, answer in zip(names, models, _answers(models), strict=True):
        rules = sorted({one.rule for one in lint_model(model, "graph", table)})
        found.append(Row(name, tuple(rules), answer.accepted, _said(answer)))
    return tuple(found)


def _answers(models: Sequence[onnx.ModelProto]) -> list[Answer]:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.onnx" for number in range(len(models))]
        for model, path in zip(models, paths, strict=True):
            onnx.save(model, path)
        return ask_all(paths, ("8.9",))


def _said(answer: Answer) -> str:
    if answer.aborted:
        return "the process ends"
    stage = "builder" if answer.parsed else "parser"
    return "accepted" if answer.accepted else f"refused by the {stage}"


def page() -> str:
    """Both tables in Markdown."""
    lines = [
        "# The lint against the real library",
        "",
        "Each row is a small graph. The lint's rules for TensorRT for RTX were applied to it, and",
        "the library's own parser and builder were asked (compute capability 8.9). Where they",
        "differ, the last column says why. `make test-rtx` asks again, and holds this page.",
        "",
        "| graph | TensorRT for RTX | lint | |",
        "|---|---|---|---|",
    ]
    of_types = {f"{operator} of {NAMES[dtype]}" for operator, dtype, _ in surveyed()}
    lines += [_line(row) for row in rows() if row.name not in of_types or not row.agrees]
    lines += ["", *_types(), ""]
    agreeing = sum(row.agrees for row in rows())
    lines.append(f"{agreeing} of {len(rows())} graphs agree.")
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    rules = ", ".join(f"`{rule}`" for rule in row.rules) or "nothing"
    why = "" if row.agrees else EXPLAINED.get(row.name, "**they differ**")
    return f"| {row.name} | {row.library} | {rules} | {why} |"


def _types() -> list[str]:
    """A line for each operator: types that ONNX allows, by what the library does with them."""
    lines = [
        "## Types",
        "",
        "A graph for each type that ONNX allows. fp64 stands between casts, and is computed in",
        "fp32. The lint says the same of all but those in the table above.",
        "",
        "| operator | accepted | refused |",
        "|---|---|---|",
    ]
    accepted = {row.name: row.accepted for row in rows()}
    found: dict[str, dict[bool, list[str]]] = {}
    for operator, dtype, _ in surveyed():
        answer = accepted[f"{operator} of {NAMES[dtype]}"]
        found.setdefault(operator, {True: [], False: []})[answer].append(NAMES[dtype])
    for operator, types in found.items():
        lines.append(f"| {operator} | {', '.join(types[True])} | {', '.join(types[False])} |")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page())
