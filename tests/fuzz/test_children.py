"""The harness reports what became of a case, whatever the case did to its process."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from snapexport.errors import UserError
from tests.fuzz import children, outcomes
from tests.patience import PATIENCE


class Fake:
    """Does by its number what a hostile input could make of a process."""

    name = "fake"

    def __init__(self, way: str) -> None:
        self.way = way

    def mutate(self, rng: random.Random, directory: Path) -> str:
        return self.way

    def judge(self, directory: Path) -> tuple[str, str]:
        WAYS[self.way]()
        return outcomes.SAME, ""


def refuse() -> None:
    raise UserError("no", "yes")


def crash() -> None:
    raise KeyError("x")


def accept_wrongly() -> None:
    raise children.WronglyAcceptedError("x")


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def eat() -> None:
    bytearray(children.BYTES)


def wait() -> None:
    time.sleep(PATIENCE)


def loop() -> None:
    while True:
        pass


WAYS = {
    outcomes.REFUSED: refuse,
    outcomes.TRACEBACK: crash,
    outcomes.WRONG: accept_wrongly,
    outcomes.DIED: die,
    outcomes.MEMORY: eat,
    outcomes.HANG: wait,
    outcomes.SAME: lambda: None,
    "hang by looping": loop,
}


@pytest.mark.parametrize("way", WAYS)
def test_harness_reports_every_end_of_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    # A case that only waits is all that has to meet the clock.
    if way == outcomes.HANG:
        monkeypatch.setattr(children, "SECONDS", 0.5)
    monkeypatch.setattr(children, "CPU_SECONDS", 1)
    (result,) = children.run(Fake(way), 0, [5], tmp_path, workers=1)
    assert (result.index, result.outcome) == (5, way.split()[0])
    children.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_hostile_templates_end_in_a_text_or_a_refusal(tmp_path: Path) -> None:
    from tests.fuzz.texts import Templates

    found = list(children.run(Templates(tmp_path), 1, range(24), tmp_path))
    assert len(found) == 24 and not [result for result in found if result.failed]
