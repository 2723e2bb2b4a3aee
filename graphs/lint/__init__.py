"""Finds in a graph what TensorRT would refuse, without TensorRT.

`tables.py` lists the operators that each version's parser takes. `rules/` checks conditions of the
parser and of the engine's builder. `view.py` reads a graph with its functions inlined. The lint
does not know how the graphs are made.
"""

from snapexport.graphs.lint.findings import Finding
from snapexport.graphs.lint.lint import lint_file, lint_model
from snapexport.graphs.lint.tables import OperatorTable, table_for

__all__ = ["Finding", "OperatorTable", "lint_file", "lint_model", "table_for"]
