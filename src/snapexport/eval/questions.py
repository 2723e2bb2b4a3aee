"""Which samples are made, and how one becomes a request: what is prompt, what comes later."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tokenizers import Tokenizer

from snapexport.eval.tasks import TASKS, Sample, filler

SLACK = 16
"""Tokens by which the answers of two samples of one task may differ in length."""


@dataclass(frozen=True)
class Cell:
    """A sample to be made. depth: as asked for; the sample knows where its needle really stands."""

    task: str
    length: int
    depth: float
    seed: int


@dataclass(frozen=True)
class Request:
    """Token ids: what is compressed, and what follows it before the answer begins."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class Questions:
    """All the samples of an evaluation, made when they are needed.

    aging: tokens of other text between a question and its repetition. answer_tokens: the least
    length of the long answers.
    """

    tokenizer: Tokenizer
    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    samples: int
    seed: int
    aging: int
    answer_tokens: int

    def cells(self) -> list[Cell]:
        """Every cell with a seed of its own."""
        grid = product(self.tasks, self.lengths, self.depths, range(self.samples))
        return [Cell(*cell[:3], self.seed + index) for index, cell in enumerate(grid)]

    def sample(self, cell: Cell) -> Sample:
        """The cell's sample. Raises UserError where the tokenizer or the length forbid it."""
        task = TASKS[cell.task]
        return task.sample(self.tokenizer, cell.seed, cell.length, cell.depth, self.answer_tokens)

    def require_fit(self) -> None:
        """Make the shortest samples, all of them: keys and numbers differ in length by the seed.

        Raises UserError where the tokenizer can't spell a task, or a sample doesn't fit.
        """
        for cell in self.cells():
            if cell.length == min(self.lengths):
                self.sample(cell)

    def request(self, sample: Sample, cell: Cell, mode: str) -> Request:
        """The sample as one of the modes asks it."""
        if mode == "agnostic":
            return Request(sample.context_ids, sample.question_ids)
        prompt = sample.context_ids + sample.question_ids
        return Request(prompt, self._again(sample, cell) if mode == "late" else ())

    def _again(self, sample: Sample, cell: Cell) -> tuple[int, ...]:
        """The right answer, other text, and the question once more."""
        newline = tuple(self.tokenizer.encode("\n", add_special_tokens=False).ids)
        noise = filler(self.tokenizer, cell.task, cell.seed, self.aging)
        return sample.reference_ids + newline + noise + sample.question_ids

    def positions(self, modes: Sequence[str]) -> int:
        """Positions that the longest request and its answer take."""
        length, depth = max(self.lengths), self.depths[0]
        cells = [Cell(task, length, depth, self.seed) for task in self.tasks]
        return max(self._positions(cell, mode) for cell in cells for mode in modes)

    def _positions(self, cell: Cell, mode: str) -> int:
        sample = self.sample(cell)
        later = len(self._again(sample, cell)) if mode == "late" else 0
        return cell.length + later + sample.max_tokens + SLACK
