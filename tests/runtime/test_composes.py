"""A toy follower and a toy drafter are rows in tables: a request runs through each.

They are handed in as the built-in ones are, and nothing in the package is edited.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from snapexport import LLM, SamplingParams
from snapexport.contract.build_directory import Build
from snapexport.contract.pieces import Piece
from snapexport.runtime.engine import executor
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.followers import SlotFollower, Step
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.method import Loaded, MethodRun, runs
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.speculation import Draft, Drafter, Payoff, StepInputs
from tests.oracle import cases
from tests.oracle.cases import Case, build_of

PROMPTS = [list(cases.prompt(length, length)) for length in (70, 5, 40, 33)]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def executor_of(build: Build) -> Executor:
    graphs = GraphSet.of(build, baseline=False)
    backend = OnnxRuntimeBackend(build, graphs, threads=1, prepack=False)
    return Executor(build.manifest, graphs, backend)


def add_to_methods(patch: pytest.MonkeyPatch, run: MethodRun) -> None:
    patch.setattr(executor, "runs", lambda manifest: [*runs(manifest), run])


def test_executor_imports_no_method() -> None:
    assert "snapexport.methods" not in Path(executor.__file__).read_text()


def tokens(llm: LLM) -> list[tuple[int, ...]]:
    return [done.token_ids for done in llm.generate(PROMPTS, PARAMS)]


def plain(build: Build) -> list[tuple[int, ...]]:
    return tokens(LLM(build.directory, threads=1, speculates=False))


class ToyFollower(SlotFollower):
    """Counts the tokens of the request in each batch slot."""

    def __init__(self, batch: int) -> None:
        self.counts, self.most = [0] * batch, 0

    def took(self, slot: int, prompt: tuple[int, ...], piece: Piece, hidden_states: Any) -> None:
        self.counts[slot] = piece.end

    def fill(self, slot: int, prompt_length: int) -> None:
        assert self.counts[slot] == prompt_length

    def decoded(self, step: Step) -> None:
        for slot, length in enumerate(step.prompt_length.tolist()):
            if length:
                assert self.counts[slot] == step.position_ids[slot], "an event was left out"
                self.counts[slot] += 1
        self.most = max(self.most, *self.counts)

    def move(self, source: int, target: int) -> None:
        self.counts[target] = self.counts[source]


def test_a_toy_follower_hears_of_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    build, made = build_of(Case(decode_batches=(1, 3))), list[ToyFollower]()
    answers = plain(build)

    def make(loaded: Loaded) -> ToyFollower:
        made.append(ToyFollower(loaded.limits.batch))
        return made[0]

    toy = MethodRun()
    toy.followers = (make,)
    add_to_methods(monkeypatch, toy)
    assert tokens(LLM.from_executor(executor_of(build))) == answers
    assert made[0].most == 70 + PARAMS.max_tokens - 1


class ToyDrafter(Drafter):
    """Knows every answer beforehand."""

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self._answers = answers
        self.learned: list[tuple[int, int]] = []

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> Mapping[int, Draft]:
        return {live.request_id: self._draft(live) for live in lives}

    def _draft(self, live: Generation) -> Draft:
        done = len(live.tokens_from(len(live.prompt_token_ids)))
        coming = self._answers[live.request_id][done : done + live.room]
        return Draft(coming, len(coming), self)

    def learn(self, request_id: int, right: int, wrong: int) -> None:
        self.learned.append((right, wrong))


def test_drafts_of_a_toy_drafter_are_checked_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Payoff, "pays", lambda *_: True)
    build = build_of(Case(tokens_per_step=4))
    answers = plain(build)
    toy = ToyDrafter(answers)
    made = executor_of(build)
    llm = LLM.from_executor(made, drafters=(lambda _: toy, *made.drafters))
    assert tokens(llm) == answers
    assert toy.learned and not any(wrong for _, wrong in toy.learned)
    assert sum(right for right, _ in toy.learned) >= len(PROMPTS) * PARAMS.max_tokens // 2
