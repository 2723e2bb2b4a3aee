"""Defines the nouns of a run: requests, sampling parameters and outputs, with their invariants.

Knows no executor, no scheduler and no tokenizer.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.runtime.engine.rows import Row
from snapexport.runtime.requests.structured_outputs import Grammar, StructuredOutputs

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""stop: an end-of-sequence token, a stop token or a stop string. length: max_tokens or the build's
last position. cancelled: by the caller. error: logits were not finite, as when fp16 overflows
(`snapexport build --dtype fp32` avoids that), or the executor failed, and the delta has its
exception.
"""

MAX_LOGPROBS = 20
"""The most alternatives reported beside a token's log probability, as in vLLM and OpenAI's API."""

MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
"""Limits on stop texts and on the characters of each: all are compared after every token."""

MAX_SESSION_CHARACTERS = 256

MOST_BIAS = 100.0
"""A larger `logit_bias` counts as this one, in either direction, as in vLLM."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it ends. Immutable; invalid values raise UserError.

    temperature 0 takes the likeliest token; otherwise temperature, then top_k (0: off), then top_p
    (1: off) shape the distribution. The same seed on the same build gives the same tokens.
    A text in `stop` ends the request and is not part of its text, and so does a token in
    `stop_token_ids`. logprobs: how many likeliest tokens each output token reports beside its own
    log probability; None reports nothing.

    As in vLLM: presence_penalty and frequency_penalty are taken off the logits of tokens that the
    answer has, once and for each time. repetition_penalty divides the positive logits of tokens
    that the prompt or the answer has, and multiplies the negative ones. min_p leaves out tokens of
    less than that share of the likeliest one's probability. logit_bias is added, by token. Nothing
    ends the answer before min_tokens. structured_outputs prescribes the answer's form: it ends with
    "stop" when nothing may follow, and may end by an end token where it is complete.
    skip_special_tokens: leave them out of the text.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    stop_token_ids: Sequence[int] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_tokens: int = 0
    structured_outputs: StructuredOutputs | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._require("max_tokens", _whole(self.max_tokens, 1), "a whole number, 1 or more")
        self._require("temperature", _real(self.temperature, 0), "0 (greedy) or a number above it")
        self._require("top_p", _real(self.top_p, 0, 1) and self.top_p > 0, "above 0 and at most 1")
        self._require("top_k", _whole(self.top_k, 0), "0 (off) or a whole number above it")
        self._require("seed", self.seed is None or _whole(self.seed, 0), "0 or more, or None")
        for name in ("ignore_eos", "skip_special_tokens"):
            self._require(name, isinstance(getattr(self, name), bool), "True or False")
        few = self.logprobs is None or _whole(self.logprobs, 0, MAX_LOGPROBS)
        self._require("logprobs", few, f"a whole number from 0 to {MAX_LOGPROBS}, or None")
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._require("stop", _are_texts(self.stop), "texts of one character or more")
        _require_few(self.stop)
        object.__setattr__(self, "stop", tuple(self.stop))
        tokens = self.stop_token_ids
        few = isinstance(tokens, list | tuple) and len(tokens) <= MAX_STOPS
        known = few and all(_whole(token, 0) for token in tokens)
        self._require("stop_token_ids", known, f"up to {MAX_STOPS} token ids")
        object.__setattr__(self, "stop_token_ids", tuple(map(int, tokens)))
        self._check_processors()

    def _check_processors(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            self._require(name, _real(getattr(self, name), -2, 2), "a number from -2 to 2")
        fits = _real(self.repetition_penalty, 1e-3, 1e3)
        self._require("repetition_penalty", fits, "a number from 0.001 to 1000")
        self._require("min_p", _real(self.min_p, 0, 1), "a number from 0 to 1")
        self._require(
            "min_tokens",
            _whole(self.min_tokens, 0, self.max_tokens),
            f"a whole number from 0 to max_tokens, {self.max_tokens}",
        )
        form = self.structured_outputs
        fits = form is None or isinstance(form, StructuredOutputs)
        self._require("structured_outputs", fits, "a StructuredOutputs, or None")
        if self.logit_bias is not None:
            bias = _bias(self.logit_bias)
            self._require("logit_bias", bias is not None, "a number for each of its token ids")
            object.__setattr__(self, "logit_bias", bias)

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise UserError(
                f"{name} {getattr(self, name)!r:.200} cannot be used", f"{name} must be {allowed}"
            )


def require_name(kind: str, name: str) -> str:
    """A session's name, or a salt. Raises UserError for one that is not a text, or too long."""
    if not isinstance(name, str) or len(name) > MAX_SESSION_CHARACTERS:
        raise UserError(
            f"{kind} {name!r:.80} cannot be used",
            f"it must be a text of up to {MAX_SESSION_CHARACTERS} characters",
        )
    return name


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that another executor prefilled, and the first token, which was chosen there."""

    row: Row
    first_token: int


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt that fits the executor's limits, and how to continue it. Made by `prompts.read`.

    continuation: tokens that follow the prompt. Decode takes them one by one, after the prompt was
    compressed. params None: the request ends with them, and nothing is sampled. prompt_logprobs:
    each of them has logprobs of this many likeliest tokens, in place of a score. park_at: tokens of
    the prompt after which its row is parked, where rows are; 0: at its end. shows_held: its first
    output says which positions are held.
    hand_over: end after the first token, and keep the prompt's row for another executor. prefilled:
    a row that another executor handed over; nothing is prefilled here. session: of parked rows,
    only those of the same session are used. cache_salt: only what prompts of the same salt have
    left is used, in any cache. grammar: of `params.structured_outputs`, compiled.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams | None
    continuation: tuple[int, ...] = ()
    hand_over: bool = False
    prefilled: Prefilled | None = None
    session: str = ""
    cache_salt: str = ""
    grammar: Grammar | None = None
    prompt_logprobs: int | None = None
    park_at: int = 0
    shows_held: bool = False


def session_of(request: Request) -> str:
    """The name under which its rows are parked: another one for each salt."""
    salt = request.cache_salt
    return f"{len(salt)}:{salt}{request.session}" if salt else request.session


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A given token's natural log probability, and whether greedy decoding would choose it."""

    logprob: float
    is_greedy: bool


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities of a chosen token, and of the likeliest tokens at its position.

    They are the model's own, before temperature, top-k and top-p, as in vLLM. top: pairs of token
    and log probability, likeliest first, of equals the lower token; the chosen one may be among
    them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """The output that one step adds to one request. Only the last delta has a finish_reason.

    A step that takes a token of the request's continuation gives its score or its logprobs, and no
    text or token. logprobs: one for each token if the parameters want them. exception: the
    executor's, if it ended the request with "error". row: the prompt's, of a request that hands it
    over; its batch slot is kept until `LLM.release`. cached_tokens: of a first delta, the prompt's
    tokens that a parked row or the prompt cache on disk held. held: of a first delta, the share of
    the KV heads that hold each position of the prompt, fp32 [L], if the request asked for it.
    drafted, accepted: tokens that were guessed for this step, and those of them that were right.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    score: TokenScore | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    exception: Exception | None = None
    row: Row | None = None
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    held: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A continuation's tokens, the log probability of each, and whether greedy decoding gives them.

    Shorter than the continuation if logits were not finite.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool

    @classmethod
    def of(cls, request: Request, deltas: Sequence[OutputDelta]) -> "Score":
        """Join the scores of a request that ended."""
        scores = [delta.score for delta in deltas if delta.score is not None]
        return cls(
            request.continuation[: len(scores)],
            tuple(score.logprob for score in scores),
            len(scores) == len(request.continuation) and all(score.is_greedy for score in scores),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request: the joined texts, token ids and logprobs of its deltas.

    The token that ended it is in `token_ids` and not in `text`. logprobs: one for each token, or
    none. drafted, accepted: tokens that were guessed ahead, and those of them that were right.
    cached_tokens: the prompt's tokens that a parked row or the prompt cache on disk held.
    """

    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0

    @classmethod
    def of(cls, request: Request, deltas: Sequence[OutputDelta]) -> "Completion":
        """Join the deltas of a request that ended."""
        tokens = tuple(token for delta in deltas for token in delta.token_ids)
        reason = deltas[-1].finish_reason
        assert reason is not None
        return cls(
            request.prompt_token_ids,
            "".join(delta.text for delta in deltas),
            tokens,
            reason,
            tuple(logprob for delta in deltas for logprob in delta.logprobs),
            sum(delta.drafted for delta in deltas),
            sum(delta.accepted for delta in deltas),
            sum(delta.cached_tokens for delta in deltas),
        )


def _whole(value: object, least: int, most: float = math.inf) -> bool:
    if not isinstance(value, Integral) or isinstance(value, bool):
        return False
    return least <= int(value) <= most


def _real(value: object, least: float, most: float = sys.float_info.max) -> bool:
    """Whether it is a number within the limits; NaN and infinity are not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return least <= float(value) <= most


def _bias(values: object) -> dict[int, float] | None:
    """The bias of each token, within the limits; None if some key or value is not a number."""
    if not isinstance(values, Mapping):
        return None
    if not all(_whole(k, 0) and _real(v, -sys.float_info.max) for k, v in values.items()):
        return None
    return {int(k): min(max(float(v), -MOST_BIAS), MOST_BIAS) for k, v in values.items()}


def _are_texts(values: object) -> bool:
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(text, str) and text for text in values)


def _require_few(stops: Sequence[str]) -> None:
    """The errors leave out the texts, which may be megabytes."""
    longest = max(map(len, stops), default=0)
    if len(stops) > MAX_STOPS:
        raise UserError(f"stop has {len(stops)} texts", f"stop may have up to {MAX_STOPS}")
    if longest > MAX_STOP_CHARACTERS:
        raise UserError(
            f"stop has a text of {longest} characters",
            f"texts in stop may have up to {MAX_STOP_CHARACTERS}",
        )
