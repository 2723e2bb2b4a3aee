"""Applies every rule to every node of a graph."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import NodeProto

from snapexport.graphs.lint.findings import Finding, Problem
from snapexport.graphs.lint.rules import NODE_RULES
from snapexport.graphs.lint.rules import model as whole
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView


def lint_file(path: Path, graph: str, table: OperatorTable) -> list[Finding]:
    """Findings of an ONNX file. Its external weights are not read."""
    too_large = [_of_model(graph, problem) for problem in whole.size(path.stat().st_size)]
    # A file beyond that size cannot be read.
    return too_large or lint_model(onnx.load(path, load_external_data=False), graph, table)


def lint_model(model: onnx.ModelProto, graph: str, table: OperatorTable) -> list[Finding]:
    """Findings of a model in memory. `graph` is its name in the findings."""
    view = GraphView(model)
    problems = [*whole.opset(model, table), *whole.valid(view), *whole.fixed_shapes(view)]
    problems += [*whole.wide_ends(view), *whole.references(model)]
    findings = [_of_model(graph, problem) for problem in problems]
    for node in view.nodes:
        findings.extend(_of_node(graph, node, view, table))
    return findings


def _of_node(
    graph: str, node: NodeProto, view: GraphView, table: OperatorTable
) -> Iterator[Finding]:
    for rule in NODE_RULES:
        for problem in rule(node, view, table):
            if problem.rule not in table.relaxed:
                yield _finding(graph, node.name or node.output[0], node.op_type, problem)


def _of_model(graph: str, problem: Problem) -> Finding:
    return _finding(graph, "the graph", "", problem)


def _finding(graph: str, node: str, operator: str, problem: Problem) -> Finding:
    return Finding(graph, node, operator, **vars(problem))
