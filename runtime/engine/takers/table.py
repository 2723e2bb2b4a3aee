"""Lists who takes each kind of prefill work: the common kind, and those of a build's methods."""

from snapexport.contract.manifest import Manifest
from snapexport.contract.pieces import CHUNK
from snapexport.runtime.engine.method import runs
from snapexport.runtime.engine.takers.chunks import make_chunks
from snapexport.runtime.engine.takers.taker import MakeTaker


def takers_of(manifest: Manifest) -> tuple[tuple[str, MakeTaker], ...]:
    """Who takes which kind of pieces, in the order in which they are made."""
    methods = (taker for run in runs(manifest) for taker in run.takers)
    return ((CHUNK, make_chunks), *methods)
