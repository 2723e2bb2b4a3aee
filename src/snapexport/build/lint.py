"""Applies the lint to the graphs of a finished build."""

from snapexport.contract.build_directory import Build
from snapexport.graphs.lint import Finding, OperatorTable, lint_file, table_for

__all__ = ["Finding", "OperatorTable", "lint_build", "table_for"]


def lint_build(build: Build, table: OperatorTable) -> list[Finding]:
    """Findings of all graphs, including the bodies of our functions."""
    graphs = sorted(build.manifest.graphs)
    return [finding for name in graphs for finding in lint_file(build.graph(name), name, table)]
