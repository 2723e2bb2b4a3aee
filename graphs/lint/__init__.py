"""What TensorRT would refuse, told from a graph alone: no TensorRT is needed, and none is asked.

`tables/` holds which operators the parser of a version takes, as data; `rules/` the conditions
under which it takes them, and those that show only when an engine is built. `view.py` reads a
graph with its functions inlined. Linting knows nothing of how the graphs are made.
"""

from snapexport.graphs.lint.findings import Finding
from snapexport.graphs.lint.lint import lint_file, lint_model
from snapexport.graphs.lint.tables import OperatorTable, table_for

__all__ = ["Finding", "OperatorTable", "lint_file", "lint_model", "table_for"]
