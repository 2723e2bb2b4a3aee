"""Cuts a prompt into pieces of prefill work, which say what it costs.

    chunk     tokens into a cache of full length, which is compressed after the last piece
    block     tokens onto a compressed row

Work that follows a prompt's chunks, such as another vote, is a row of `Prefill.further`; the taker
of its kind does it. Knows no graph, no batch slot and no method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

CHUNK, BLOCK = "chunk", "block"
"""Common kinds of pieces. A taker names the kind that it takes; a method has kinds of its own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Prefill work of one step: tokens [start, end) of a prompt, by one kind of graph.

    cost: tokens of a step's budget.
    keeps_row: nobody else's piece comes between those of this prompt, since they share a row.
    joined: goes in the same step as the piece before it, and its cost is paid afterwards.
    only_votes: the cache has its tokens already.
    decode_steps: steps that it decodes before it runs a chunk.
    is_last: the batch slot is filled by it, and the request runs from then on.
    """

    kind: str
    start: int
    end: int
    cost: int
    keeps_row: bool = False
    joined: bool = False
    only_votes: bool = False
    decode_steps: int = 0
    is_last: bool = False


class FurtherWork(Protocol):
    """Further work after a prompt's chunks."""

    def pieces(self, prompt_length: int, chunk: int) -> Sequence[Piece]:
        """Empty for a prompt that does not need it. chunk: tokens of a prefill chunk."""


class InnerChunks(Protocol):
    """Chunks inside a prompt that run in a graph of their own."""

    @property
    def graph(self) -> str:
        """The name of the graph."""

    def takes(self, start: int) -> bool:
        """Whether a chunk at position `start` runs in it, but for a prompt's last one."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """How the prompts of a build are taken.

    chunks: tokens that graphs take at once, ascending; the last is a whole chunk, or a block.
    longest: tokens of the longest prompt that is taken in chunks; 0: all go in blocks.
    voters: tokens of a prompt's end that each block but the last has room for, and that vote on it.
    further: what follows the chunks of a prompt.
    rewinds: whether a chunk may take tokens again. Recurrent states can't: then it is the first
    chunk that is short.
    """

    chunks: tuple[int, ...]
    longest: int
    voters: int = 0
    further: tuple[FurtherWork, ...] = ()
    rewinds: bool = True

    @property
    def chunk(self) -> int:
        """Tokens of a whole chunk, or of a block."""
        return self.chunks[-1]

    def size(self, count: int) -> int:
        """Tokens of the shortest graph that takes `count` of them."""
        return next((tokens for tokens in self.chunks if count <= tokens), self.chunk)

    def least_row(self, prompt_length: int) -> int:
        """Tokens of the shortest row that saves work of a prompt that begins with it."""
        whole, left = divmod(prompt_length - 1, self.chunk)
        if whole:
            return left + 1
        cheaper = [tokens for tokens in self.chunks if tokens < self.size(prompt_length)]
        return prompt_length - max(cheaper, default=0)

    def whole_chunks(self, prompt_length: int) -> int:
        """Whole chunks that a prompt's first tokens go in, from border to border.

        Those of longer prompts with the same beginning are the same. Its end is in none of them.
        """
        whole, left = divmod(prompt_length - 1, self.chunk)
        return whole if self.rewinds or left == self.chunk - 1 else max(0, whole - 1)

    def is_too_long(self, prompt_length: int) -> bool:
        """Whether a prompt goes in blocks, even if no row begins it."""
        return prompt_length > self.longest


def pieces(prompt_length: int, done: int, prefill: Prefill, *, onto_row: bool) -> tuple[Piece, ...]:
    """The work from token `done` of a prompt on.

    onto_row: in blocks, onto a compressed row that has `done` tokens. In chunks nothing is done.
    """
    if onto_row:
        found = _blocks(done, prompt_length, prefill)
    else:
        assert not done
        found = _chunks(prompt_length, prefill)
        for work in prefill.further:
            found += work.pieces(prompt_length, prefill.chunk)
    return (*found[:-1], replace(found[-1], is_last=True))


def pieces_of(prompt_length: int, prefill: Prefill) -> tuple[Piece, ...]:
    """The work of a prompt that no row begins."""
    return pieces(prompt_length, 0, prefill, onto_row=prefill.is_too_long(prompt_length))


def chunks(length: int, chunk: int, *, rewinds: bool) -> list[tuple[int, int]]:
    """[0, C), [C, 2C) ... and [length - C, length), which overlaps the one before.

    If none rewinds, a short one comes before the last: [0, C) ... [n, n + r), [n + r, length). All
    voters are in the last one then too, nothing is written after the prompt, as a short last chunk
    would, and prompts that begin alike have their first chunks in common.
    """
    if rewinds:
        ends = [*range(chunk, length, chunk), length]
        return [(max(0, end - chunk), end) for end in ends]
    whole = (length - 1) // chunk
    ends = [*range(chunk, whole * chunk, chunk), *((length - chunk,) if whole else ()), length]
    return list(zip([0, *ends], ends, strict=False))


def _chunks(length: int, prefill: Prefill) -> list[Piece]:
    """The chunks; tokens beside whole ones go into the shortest graph that holds them."""
    found: list[Piece] = []
    done = 0
    for start, end in chunks(length, prefill.chunk, rewinds=prefill.rewinds):
        size = prefill.size(end - done)
        found.append(Piece(CHUNK, max(start, end - size), end, size))
        done = end
    return found


def _blocks(start: int, end: int, prefill: Prefill) -> list[Piece]:
    """The blocks, as few as possible.

    The prompt's last tokens follow each block but the last, which has them. With these all are
    equally long, up to one token: a short block would leave the vote to few. Where a block ends
    does not depend on the graphs that there are.
    """
    found: list[Piece] = []
    while start < end:
        stop, voters = end, 0
        if end - start > prefill.chunk:
            left, most = end - prefill.voters - start, prefill.chunk - prefill.voters
            count = -(-left // most)
            stop, voters = start + -(-left // count), prefill.voters
        size = prefill.size(stop - start + voters)
        found.append(Piece(BLOCK, start, stop, size, keeps_row=True))
        start = stop
    return found
