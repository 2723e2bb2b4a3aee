"""Defines what changes a request's logits before a token is chosen. `table.py` lists the kinds."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.runtime.engine.predictions import Logits, Prediction
from snapexport.runtime.requests.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """What a processor is made for: a request, and the tokens that end its answer."""

    request: Request
    params: SamplingParams
    end_tokens: frozenset[int]


class LogitProcessor:
    """Of one request. Log probabilities are of the model's own logits, which it doesn't change.

    A draft's tokens are taken one by one, so that it sees each before the next logits.
    """

    def apply(self, logits: Logits) -> None:
        """Change the next token's logits [V], in place."""
        raise NotImplementedError

    def took(self, token: int) -> None:
        """A token was added to the answer."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer ends with the token that was added last."""
        return False


def processed(prediction: Prediction, processors: Sequence[LogitProcessor]) -> Prediction:
    """The prediction as the processors change it. Without any it is the same, and costs nothing."""
    if not processors:
        return prediction
    logits = prediction.logits.copy()
    for processor in processors:
        processor.apply(logits)
    return Prediction(lambda: logits)
