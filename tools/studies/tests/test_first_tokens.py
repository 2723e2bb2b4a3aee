"""First tokens of two systems are timed in turn, and the first round only warms up."""

from typing import Any

from tools.studies.speed.first_tokens import OURS, PEER, measured


class Timed:
    """A worker whose prompts take the next of some seconds."""

    def __init__(self, name: str, seconds: list[float], order: list[str]) -> None:
        self.name, self.left, self.order = name, iter(seconds), order

    def ask(self, do: str, tokens: list[int]) -> float:
        assert do == "first_token" and len(tokens) == 20
        self.order.append(self.name)
        return next(self.left)


def test_rounds_go_forth_and_back_and_give_the_median_ratio() -> None:
    order: list[str] = []
    workers: Any = {
        OURS: Timed(OURS, [9.0, 1.0, 3.0, 2.0], order),
        PEER: Timed(PEER, [9.0, 2.0, 2.0, 2.0], order),
    }
    found = measured(workers, 20, 3)
    assert found == {OURS: [1.0, 3.0, 2.0], PEER: [2.0, 2.0, 2.0], "ratio": 1.0}
    assert order == [OURS, PEER, PEER, OURS] * 2
