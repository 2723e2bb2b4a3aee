"""Copies a prompt's row to the host, and goes on from it: for the next turn, or a long output."""

from snapexport.contract import names
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import GraphEntry, Manifest, TensorSpec
from snapexport.contract.pieces import Piece
from snapexport.runtime.engine.rows import Row, Rows
from snapexport.runtime.engine.takers.taker import Resumes, Takers


class Parking:
    """Of an executor with a taker that goes on from a parked row."""

    def __init__(self, rows: Rows, takers: Takers, onto_rows: Resumes) -> None:
        self._rows, self._takers, self._onto_rows = rows, takers, onto_rows

    @classmethod
    def of(cls, rows: Rows, takers: Takers) -> "Parking | None":
        """None where no graph extends a row."""
        found = (taker for taker in takers.values() if isinstance(taker, Resumes))
        return next((cls(rows, takers, taker) for taker in found), None)

    def park(self, slot: int, last: Piece) -> Row:
        """A copy of the batch slot's row, right after its prompt's last piece."""
        prompt_length = int(self._rows.held[0, slot])
        beside = self._takers[last.kind].slot_positions(prompt_length)
        return self._rows.copy_out(slot, beside)

    def resume(self, slot: int, row: Row) -> None:
        """Go on from a parked row: the prompt's next block follows it."""
        self._onto_rows.resume(row)
        for follower in self._rows.followers:
            follower.begin(slot, row.prompt_length)


def row_states(manifest: Manifest) -> list[TensorSpec]:
    """What a parked row of a build consists of, if a graph takes tokens onto rows."""
    found = (entry for name, entry in manifest.graphs.items() if graph_of(name).kind.extends_rows)
    return row_inputs(next(found))


def row_inputs(entry: GraphEntry) -> list[TensorSpec]:
    """The inputs of a graph that are part of a row: an output takes the place of each."""
    return [spec for spec in entry.inputs if names.present_of(spec.name) != spec.name]
