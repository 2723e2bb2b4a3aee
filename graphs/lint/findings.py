"""Results of the lint."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One broken rule. message: what is wrong. way_out: what to do. source: of the rule."""

    rule: str
    message: str
    way_out: str
    source: str


@dataclass(frozen=True)
class Finding:
    """A problem of one node or graph. `node` is the node's name, or its first output's if unnamed.

    A node in the body of one of our functions is named FUNCTION.NUMBER__CALL.
    """

    graph: str
    node: str
    operator: str
    rule: str
    message: str
    way_out: str
    source: str
