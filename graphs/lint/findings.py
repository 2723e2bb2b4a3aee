"""What the lint says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One broken rule: what is wrong, the way out, and where the rule stands."""

    rule: str
    message: str
    way_out: str
    source: str


@dataclass(frozen=True)
class Finding:
    """A problem at its place. `node` is the node's name, or what it writes where it has none.

    A node in the body of one of our functions is called FUNCTION.NUMBER__CALL.
    """

    graph: str
    node: str
    operator: str
    rule: str
    message: str
    way_out: str
    source: str
