"""Which operators the ONNX parser of a TensorRT version takes, a file for each version."""

from snapexport.contract.errors import UserError
from snapexport.graphs.lint.tables import tensorrt_10_15, tensorrt_11_0
from snapexport.graphs.lint.tables.operator_table import OperatorTable

__all__ = ["OperatorTable", "table_for"]

_TABLES = (tensorrt_10_15.TABLE, tensorrt_11_0.TABLE)
"""Oldest first. Older parsers know neither TensorScatter nor RMSNormalization."""


def table_for(version: str | None) -> OperatorTable:
    """The newest table that is not newer than `version` ("11", "10.15", "11.1.0.106").

    None: the newest there is. Raises UserError for what is no version, or older than all tables.
    """
    if version is None:
        return _TABLES[-1]
    wanted = _parse(version)
    # "11" is any 11: the newest of them.
    known = [table for table in _TABLES if _parse(table.version)[: len(wanted)] <= wanted]
    if not known:
        raise UserError(
            f"TensorRT {version} is too old: its parser has no TensorScatter",
            f"lint for {_TABLES[0].version} or newer",
        )
    return known[-1]


def _parse(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"'{version}' is no version of TensorRT", "write it like 11.0")
    return tuple(map(int, parts))
