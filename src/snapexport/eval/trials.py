"""Asks every contestant every question, and scores what it writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from snapexport.eval.arena import Arena
from snapexport.eval.contestants import Contestant
from snapexport.eval.plan import Plan
from snapexport.eval.questions import Cell, Request
from snapexport.eval.tasks import Sample
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import Completion, SamplingParams

Key = tuple[str, int, str, str, int, int]


@dataclass(frozen=True)
class Outcome:
    """One answer.

    score: RULER's share of the right answers that occur in the text. first: whether the first token
    is right, which prefill gives away. rest: whether all further tokens of the reference are.
    """

    contestant: str
    slots: int
    mode: str
    task: str
    length: int
    seed: int
    depth: float
    score: float
    first: bool
    rest: bool
    text: str
    expected: str

    @property
    def key(self) -> Key:
        """What was asked of whom."""
        return self.contestant, self.slots, self.mode, self.task, self.length, self.seed

    def report(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def run(plan: Plan, arena: Arena, done: frozenset[Key] = frozenset()) -> Iterator[Outcome]:
    """One outcome after the other; those in `done` are left out.

    All contestants answer a question before the next one is made: its prompt is prefilled once.
    """
    pending = {cell: _pending(plan, cell, done) for cell in plan.questions.cells()}
    if not any(pending.values()):
        return
    llms = dict(zip(plan.contestants, arena.load(plan.contestants), strict=True))
    for cell, asked in pending.items():
        if asked:
            yield from _answers(plan, cell, asked, llms)


def _pending(plan: Plan, cell: Cell, done: frozenset[Key]) -> list[tuple[Contestant, str]]:
    """Who is still to be asked a cell's question, and how."""
    every = product(plan.contestants, plan.options.modes)
    return [pair for pair in every if _key(*pair, cell) not in done]


def _answers(
    plan: Plan,
    cell: Cell,
    asked: Sequence[tuple[Contestant, str]],
    llms: Mapping[Contestant, LLM],
) -> Iterator[Outcome]:
    sample = plan.questions.sample(cell)
    for contestant, mode in asked:
        completion = _ask(llms[contestant], plan.questions.request(sample, cell, mode), sample)
        yield _outcome(contestant, mode, cell, sample, completion)


def _key(contestant: Contestant, mode: str, cell: Cell) -> Key:
    return contestant.name, contestant.slots, mode, cell.task, cell.length, cell.seed


def _ask(llm: LLM, request: Request, sample: Sample) -> Completion:
    params = SamplingParams(max_tokens=sample.max_tokens, stop=sample.stop)
    later = [request.continuation] if request.continuation else None
    (completion,) = llm.generate([request.prompt], params, later)
    return completion


def _outcome(
    contestant: Contestant, mode: str, cell: Cell, sample: Sample, completion: Completion
) -> Outcome:
    return Outcome(
        contestant.name,
        contestant.slots,
        mode,
        cell.task,
        cell.length,
        cell.seed,
        cell.depth,
        sample.score(completion.text),
        sample.score_first(completion.token_ids),
        sample.score_rest(completion.token_ids),
        completion.text,
        sample.reference,
    )
