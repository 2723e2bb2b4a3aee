"""Check whether a target can run a build's graphs.

Every node, also in the bodies of functions, is compared with what is recorded of the target: its
operators, types and largest TopK. For tensorrt and tensorrt-rtx, the parser of TensorRT for RTX is
asked too, if it is installed; it needs no GPU. The exit status is 1 if anything is found.

examples:
  snapexport lint llama.build
  snapexport lint llama.build --target tensorrt --json
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
from snapexport.contract.targets import TARGETS, capabilities
from snapexport.errors import needs_extra

if TYPE_CHECKING:
    from snapexport.builder.lint import Finding

HELP = "check whether a target can run the graphs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the build, and the target to check it for."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--target", choices=TARGETS, help="the target to check for (default: the build's own)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if there are any."""
    build = Build.open(arguments.build)
    target = arguments.target or build.manifest.target
    with needs_extra("build"):
        from snapexport.builder.lint import lint_build, parser_for
    findings = lint_build(build, target)
    parser = parser_for(target)
    version = parser.__version__ if parser else None
    if arguments.json:
        report = {"build": str(build.directory), "target": target, "tensorrt_rtx": version}
        report |= {"graphs": sorted(build.manifest.graphs)}
        print(json.dumps(report | {"findings": [asdict(finding) for finding in findings]}))
        return int(bool(findings))
    _print(findings)
    graphs = Counter(finding.graph for finding in findings)
    found = ", ".join(f"{count} in {graph}" for graph, count in graphs.items()) or "nothing"
    checked = ", ".join(sorted(build.manifest.graphs))
    OUT.print(f"found for {capabilities(target).title}: {found} (checked: {checked})")
    if version:
        OUT.print(f"the parser of TensorRT for RTX {version} was asked")
    elif capabilities(target).compiled:
        OUT.print("no parser was asked: pip install 'snapexport[rtx]' brings TensorRT for RTX's")
    return int(bool(findings))


def _print(findings: "list[Finding]") -> None:
    """Print the findings; those that differ only in their node become one, with a count."""
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, node=""), []).append(finding.node)
    for finding, nodes in alike.items():
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        where = " ".join(filter(None, (finding.operator, nodes[0]))) + more
        OUT.print(Text.assemble((finding.graph, "bold"), f": {where}: {finding.message}"))
