"""Makes the requests of an evaluation: samples of tasks, beginnings of documents, instructions.

Each is made when it is needed. Knows neither caches nor how a request is run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from tokenizers import Tokenizer

from snapexport.compare.documents import Document, Passage, lines_of, manual, passages
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.eval.sample import Frame, Sample, Task, Text, as_it_is, continuing_ids
from snapexport.measure.eval.tasks import TASKS, filler, tasks_in
from snapexport.measure.options import EvalOptions
from snapexport.runtime.chat import template_files
from snapexport.runtime.chat.chat_prompts import ChatPrompts

SLACK = 16
"""Tokens by which the answers of two samples of one task may differ in length."""


@dataclass(frozen=True)
class Cell:
    """A sample to be made. depth: as given; the sample says where its needle really is."""

    task: str
    length: int
    depth: float
    seed: int


@dataclass(frozen=True)
class Request:
    """Token ids: the prompt, which is compressed, and what follows it before the answer begins."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """The beginning of a passage, and the tokens that follow it."""

    passage: Passage
    length: int
    tokens: int

    @property
    def key(self) -> tuple[int, str]:
        """Length and passage."""
        return self.length, self.passage.name

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """[length]"""
        return self.passage.ids[: self.length]

    @property
    def continuation_ids(self) -> tuple[int, ...]:
        """[tokens + 1]: prefill predicts the first one, which is not measured."""
        return self.passage.ids[self.length : self.length + self.tokens + 1]


@dataclass(frozen=True)
class Instruction:
    """A text with an instruction after it. prompt_ids: both, and the template around them."""

    passage: str
    length: int
    instruction: str
    prompt_ids: tuple[int, ...]
    max_tokens: int

    @property
    def key(self) -> tuple[int, str, str]:
        """Length, passage and instruction."""
        return self.length, self.passage, self.instruction


def instruct(
    passage: Passage,
    length: int,
    instruction: str,
    max_tokens: int,
    tokenizer: Tokenizer,
    frame: Frame,
) -> Instruction:
    """The prompt for the first `length` tokens of a passage."""
    lines, newline, last = instruction.rpartition("\n")  # a frame takes a question of one line
    context = tokenizer.decode(list(passage.ids[:length])) + "\n\n" + lines + newline
    text = frame(Text(context, "", last, (), ""))
    ids = text.opening(tokenizer) + continuing_ids(tokenizer, text.context, text.question)
    return Instruction(passage.name, length, instruction, ids, max_tokens)


@dataclass(frozen=True)
class Requests:
    """All the samples of an evaluation, made when they are needed.

    lengths: the options', or chosen from the build. frame: the chat template's, or none.
    aging: tokens of other text between a question and its repetition.
    answer_tokens: the least length of the long answers.
    """

    tokenizer: Tokenizer
    options: EvalOptions
    lengths: tuple[int, ...]
    documents: tuple[Document, ...]
    frame: Frame
    aging: int
    answer_tokens: int

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """All tasks by name, over the haystack's documents if there are some."""
        return tasks_in(lines_of(self.haystack)) if self.haystack else TASKS

    @cached_property
    def haystack(self) -> tuple[Document, ...]:
        """The texts around needles; none for sentences that repeat. Raises UserError."""
        if self.documents or self.options.haystack == "sentences":
            return self.documents
        return (manual(),)

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """Beginnings of the documents' passages, in all lengths, passage by passage."""
        tokens = self.options.continuation
        cut = self._passages if tokens else []
        return tuple(Prompt(passage, length, tokens) for passage in cut for length in self.lengths)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction after each of the same beginnings."""
        options = self.options
        cells = product(self._passages, self.lengths, options.instructions or ())
        return tuple(
            instruct(*cell, options.max_tokens, self.tokenizer, self.frame) for cell in cells
        )

    @cached_property
    def _passages(self) -> list[Passage]:
        options = self.options
        if not self.documents or not (options.continuation or options.instructions):
            return []
        tokens = self.lengths[-1] + options.continuation + 1
        return passages(self.documents, self.tokenizer, tokens, options.passages)

    def cells(self) -> list[Cell]:
        """Every cell with a seed of its own."""
        options = self.options
        cells = product(options.chosen_tasks, self.lengths, options.depths, range(options.samples))
        return [Cell(*cell[:3], options.seed + index) for index, cell in enumerate(cells)]

    def sample(self, cell: Cell) -> Sample:
        """The cell's sample. Raises UserError where the tokenizer or the length forbid it."""
        return self.tasks[cell.task].sample(
            self.tokenizer, cell.seed, cell.length, cell.depth, self.answer_tokens, self.frame
        )

    def require_fit(self) -> None:
        """Make the shortest sample of every seed: keys and numbers differ in tokens.

        Raises UserError where the tokenizer can't spell a task, or a sample doesn't fit.
        """
        for cell in self.cells():
            if cell.length == min(self.lengths):
                self.sample(cell)

    def request(self, sample: Sample, cell: Cell, mode: str) -> Request:
        """The sample's request in a mode."""
        if mode == "agnostic":
            return Request(sample.context_ids, sample.question_ids)
        prompt = sample.context_ids + sample.question_ids
        return Request(prompt, self._again(sample, cell) if mode == "late" else ())

    def _again(self, sample: Sample, cell: Cell) -> tuple[int, ...]:
        """The right answer, other text, and the question once more."""
        newline = tuple(self.tokenizer.encode("\n", add_special_tokens=False).ids)
        noise = filler(self.tokenizer, self.tasks[cell.task], cell.seed, self.aging)
        return sample.reference_ids + newline + noise + sample.question_ids

    def positions(self) -> int:
        """Positions that the longest request and its answer take."""
        length, options = max(self.lengths), self.options
        tasks, depth = options.chosen_tasks, options.depths[0]
        cells = [Cell(task, length, depth, options.seed) for task in tasks]
        asked = [self._positions(cell, mode) for cell in cells for mode in options.modes]
        answered = [
            len(instruction.prompt_ids) + instruction.max_tokens
            for instruction in self.instructions
        ]
        forced = length + options.continuation if options.documents else 0
        return max([*asked, *answered, forced])

    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that is compressed, at most."""
        return max(
            *self.lengths, 0, *(len(instruction.prompt_ids) for instruction in self.instructions)
        )

    def _positions(self, cell: Cell, mode: str) -> int:
        sample = self.sample(cell)
        later = len(self._again(sample, cell)) if mode == "late" else 0
        return cell.length + later + sample.max_tokens + SLACK


def frame_of(build: Build, wanted: bool | None) -> Frame:
    """The build's chat form; `as_it_is` where it has no template, or where none is wanted.

    wanted: None for a build's own template if it has one. Raises UserError where it is missing.
    """
    if wanted is False or (wanted is None and not template_files.has_template(build.directory)):
        return as_it_is
    chat = ChatPrompts.open(build.directory)

    def render(user: str) -> str:
        return chat.template.render([{"role": "user", "content": user}], True)

    return lambda text: in_chat(text, render)


def in_chat(text: Text, render: Callable[[str], str]) -> Text:
    """The text as one message of the user's. The template's own tokens end the question.

    The last line of a question of several lines begins the answer: the model has to write it. Many
    templates strip a message, and a document may begin with spaces.
    """
    question, newline, beginning = text.question.rpartition("\n")
    if not newline:
        question, beginning = beginning, ""
    rendered = render(text.context + question)
    shown = text.context if text.context in rendered else text.context.lstrip()
    if shown not in rendered:
        raise UserError("the chat template does not show a message as it is", "use --no-chat")
    end = rendered.index(shown) + len(shown)
    return replace(
        text,
        context=rendered[:end],
        question=rendered[end:],
        reference=(beginning + text.reference).lstrip(),
        in_chat=True,
    )
