"""Check a build's graphs against TensorRT's or TensorRT for RTX's rules, without either.

Every node is checked, also in the bodies of functions: types and restrictions of its operator, and
the conditions that TensorRT tests only while it builds an engine. The exit status is 1 if anything
is found. docs/how-to/lint.md says what this can't find.

examples:
  snapexport lint llama.build --for tensorrt
  snapexport lint llama.build --for tensorrt=10.15 --json
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from snapexport.cli.console import OUT
from snapexport.contract.build_directory import Build
from snapexport.contract.targets import TARGETS, Target, capabilities
from snapexport.errors import UserError, needs_extra

if TYPE_CHECKING:
    from snapexport.build.lint import Finding, OperatorTable

HELP = "check the graphs against TensorRT's operators, without TensorRT"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the build, and the library to check against."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--for",
        dest="library",
        required=True,
        metavar="LIBRARY",
        help="tensorrt or tensorrt-rtx (the newest known version), or NAME=VERSION",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if there are any."""
    library, version = _library(arguments.library)
    build = Build.open(arguments.build)
    with needs_extra("build"):
        from snapexport.build.lint import lint_build, table_for
    table = table_for(version, library)
    findings = lint_build(build, table)
    title = f"{capabilities(library).title} {table.version}"
    if arguments.json:
        print(json.dumps(_report(build, f"{library} {table.version}", table, findings)))
    else:
        _print(build, title, findings)
    return int(bool(findings))


def _library(text: str) -> tuple[Target, str | None]:
    """(library, version) of NAME or NAME=VERSION."""
    name, equals, version = text.partition("=")
    known = {str(target): target for target, record in TARGETS.items() if record.compiled}
    if name not in known:
        raise UserError(
            f"--for '{text}' is not known", f"use --for {' or '.join(known)}, or NAME=VERSION"
        )
    if equals and not version:
        raise UserError(f"--for '{text}' names no version", f"write it like --for {name}=11.0")
    return known[name], version or None


def _report(
    build: Build, library: str, table: "OperatorTable", findings: "list[Finding]"
) -> dict[str, object]:
    return {
        "build": str(build.directory),
        "for": library,
        "source": table.source,
        "graphs": sorted(build.manifest.graphs),
        "findings": [asdict(finding) for finding in findings],
    }


def _print(build: Build, title: str, findings: "list[Finding]") -> None:
    """Print the findings; those that differ only in their node become one, with a count."""
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, node=""), []).append(finding.node)
    for one, nodes in alike.items():
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        where = " ".join(filter(None, (one.operator, nodes[0]))) + more
        OUT.print(Text.assemble((one.graph, "bold"), f": {where}: {one.message}"))
        OUT.print(f"  rule: {one.rule} ({one.source})")
        OUT.print(f"  way out: {one.way_out}")
    graphs = Counter(finding.graph for finding in findings)
    found = ", ".join(f"{count} in {graph}" for graph, count in graphs.items()) or "nothing"
    checked = ", ".join(sorted(build.manifest.graphs))
    OUT.print(f"found for {title}: {found} (checked: {checked})")
