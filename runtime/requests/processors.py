"""Changes the logits that a request's next token is chosen from, and lists the ways to do so.

Knows no executor and no grammar library.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from snapexport.runtime.engine.backend import Floats, Integers
from snapexport.runtime.engine.bound_graph import Logits, Prediction
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.runtime.requests.structured_outputs import Grammar


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts that a processor is made for: a request, and the tokens that end its answer."""

    request: Request
    params: SamplingParams
    end_tokens: frozenset[int]


class LogitProcessor:
    """Changes the logits of one request.

    Log probabilities are of the model's own logits, which it doesn't change.

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


def process_logits(prediction: Prediction, processors: Sequence[LogitProcessor]) -> Prediction:
    """The prediction as the processors change it. Without any it is the same, and costs nothing."""
    if not processors:
        return prediction
    logits = prediction.logits.copy()
    for processor in processors:
        processor.apply(logits)
    return Prediction(lambda: logits)


_NEVER = -1e30
"""Not -inf: where a grammar allows no other token, the answer may end."""


class LeastTokens(LogitProcessor):
    """Bans the tokens that end the answer, until it is long enough."""

    def __init__(self, least: int, end_tokens: Iterable[int]) -> None:
        self._missing = least
        self._banned = np.array(sorted(end_tokens), np.int64)

    @classmethod
    def of(cls, answer: Answer) -> "LeastTokens | None":
        """None where no token may be banned."""
        least = answer.params.min_tokens
        return cls(least, answer.end_tokens) if least and answer.end_tokens else None

    def apply(self, logits: Logits) -> None:
        if self._missing > 0:
            logits[self._banned[self._banned < len(logits)]] = _NEVER

    def took(self, token: int) -> None:
        self._missing -= 1


class Bias(LogitProcessor):
    """`logit_bias`, by token."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = np.array(list(bias), np.int64)
        self._bias = np.array(list(bias.values()), np.float32)

    @classmethod
    def of(cls, answer: Answer) -> "Bias | None":
        """None without a bias."""
        return cls(answer.params.logit_bias) if answer.params.logit_bias else None

    def apply(self, logits: Logits) -> None:
        logits[self._tokens] += self._bias


class Penalties(LogitProcessor):
    """Repetition counts the prompt and the answer; frequency and presence only the answer."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._answer, self._text = TokenCounts(), TokenCounts()
        if self._repetition != 1:
            for token in dict.fromkeys(prompt):
                self._text.add(token)

    @classmethod
    def of(cls, answer: Answer) -> "Penalties | None":
        """None where no penalty has an effect."""
        params, request = answer.params, answer.request
        repeats = params.repetition_penalty != 1
        if not (repeats or params.presence_penalty or params.frequency_penalty):
            return None
        return cls(params, (*request.prompt_token_ids, *request.continuation))

    def apply(self, logits: Logits) -> None:
        if self._repetition != 1:
            seen = self._text.tokens
            values = logits[seen]
            factor = self._repetition
            logits[seen] = np.where(values > 0, values / factor, values * factor)
        if self._frequency or self._presence:
            counts = self._answer.counts
            logits[self._answer.tokens] -= self._frequency * counts + self._presence

    def took(self, token: int) -> None:
        self._answer.add(token)
        if self._repetition != 1:
            self._text.add(token)


class TokenCounts:
    """The different tokens of a growing text, and how often each came."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._tokens = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    @property
    def tokens(self) -> Integers:
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> Floats:
        """float32, one for each of `tokens`."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """Count the text's next token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[place] = token
        self._counts[place] += 1


class GrammarMask(LogitProcessor):
    """End tokens are allowed where the text is complete, and nowhere else."""

    def __init__(self, grammar: Grammar, end_tokens: frozenset[int]) -> None:
        self._place = grammar.begin()
        self._end_tokens = end_tokens
        self._ends = np.array([t for t in sorted(end_tokens) if t < grammar.vocab_size], np.int64)

    @classmethod
    def of(cls, answer: Answer) -> "GrammarMask | None":
        """None where no form is prescribed."""
        if answer.params.structured_outputs is None:
            return None
        assert answer.request.grammar, "LLM.constrained compiles it"
        return cls(answer.request.grammar, answer.end_tokens)

    def apply(self, logits: Logits) -> None:
        bias = self._place.bias()
        bias[self._ends] = 0 if self._place.may_end else -np.inf
        logits += bias

    def took(self, token: int) -> None:
        if token not in self._end_tokens:
            self._place.take(token)

    @property
    def is_complete(self) -> bool:
        return self._place.must_end


PROCESSORS: tuple[Callable[[Answer], LogitProcessor | None], ...] = (
    LeastTokens.of,
    Bias.of,
    Penalties.of,
    GrammarMask.of,
)


def processors_of(answer: Answer) -> tuple[LogitProcessor, ...]:
    """The processors that a request needs: none by default."""
    return tuple(made for make in PROCESSORS if (made := make(answer)))
