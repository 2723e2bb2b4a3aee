"""Lists the kinds of prefill work and who takes them. A further kind is a row here."""

from snapexport.contract.pieces import BLOCK, CHUNK, PSEUDO, REPEAT
from snapexport.runtime.engine.takers.blocks import Blocks
from snapexport.runtime.engine.takers.chunks import make_chunks
from snapexport.runtime.engine.takers.pseudo_tokens import PseudoTokens
from snapexport.runtime.engine.takers.repetition import Repetition
from snapexport.runtime.engine.takers.taker import MakeTaker

TAKERS: tuple[tuple[str, MakeTaker], ...] = (
    (CHUNK, make_chunks),
    (BLOCK, Blocks.of),
    (REPEAT, Repetition.of),
    (PSEUDO, PseudoTokens.of),
)
"""In the order in which they are made."""
