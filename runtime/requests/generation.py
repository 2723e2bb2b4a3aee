"""Holds one live request: its tokens so far, its own random numbers, its text, and its end.

Knows predictions, but no executor, no batch slot and no neighbour.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.rows import Row
from snapexport.runtime.requests.processors import Answer, process_logits, processors_of
from snapexport.runtime.requests.request import (
    FinishReason,
    OutputDelta,
    Request,
    SamplingParams,
    TokenLogprobs,
    session_of,
)
from snapexport.runtime.requests.sampling import (
    generator,
    graph_temperature,
    logprobs,
    sample,
    score,
)
from snapexport.runtime.requests.text import NoText, TextStream


class Generation:
    """Grows by a token with each `advance`, until a delta carries a finish_reason."""

    def __init__(
        self,
        request_id: int,
        request: Request,
        limits: Limits,
        tokenizer: Tokenizer | None,
        compress_every: int = 0,
    ) -> None:
        """compress_every: tokens of the output after which its row is extended; 0: never."""
        self.request_id = request_id
        self.prompt_token_ids, self.cache_salt = request.prompt_token_ids, request.cache_salt
        self.session = session_of(request)
        self.cached_token_ids = request.prompt_token_ids
        """What the batch slot's caches were compressed from, or will be: the prompt, or more."""
        self.last_token = request.prompt_token_ids[-1]
        self._continuation = deque(request.continuation)
        self.prefilled_elsewhere, self.hands_over = request.prefilled, request.hand_over
        self._samples = request.params is not None
        self._prompt_logprobs = request.prompt_logprobs
        self._params = request.params or SamplingParams()
        self.temperature = graph_temperature(self._params)
        self._limits, self._compress_every = limits, compress_every
        self._end_tokens = frozenset(self._params.stop_token_ids)
        if not self._params.ignore_eos:
            self._end_tokens |= limits.eos_token_id
        self.park_at = request.park_at
        self.cached_tokens = 0
        """Tokens of the prompt that a parked row or the prompt cache on disk held."""
        self.shows_held = request.shows_held
        self.held: NDArray[np.float32] | None = None
        """The share of the KV heads that hold each position of the prompt."""
        self.prefilled = 0
        """Tokens of the prompt that are prefilled."""
        self.begins_with: Row | None = None
        """The row of the first of `cached_token_ids`, which were compressed before."""
        self.row: Row | None = None
        """The row of `cached_token_ids`, where outputs are compressed too."""
        self._following: list[int] = []
        """Tokens after the prompt, given or chosen."""
        self._rng = generator(self._params)
        self._processors = processors_of(Answer(request, self._params, self._end_tokens))
        stop, skips = self._params.stop, self._params.skip_special_tokens
        self._text = TextStream(tokenizer, stop, skips) if tokenizer else NoText()
        self._known = len(request.prompt_token_ids)
        self._count = 0

    @property
    def position(self) -> int:
        """The last token's position, counted from the beginning of the prompt."""
        return self._known + self._count - 1

    @property
    def _fresh_tokens(self) -> int:
        """Tokens after `cached_token_ids`, the last one among them, which no step has fed yet."""
        return len(self.prompt_token_ids) + len(self._following) - len(self.cached_token_ids)

    @property
    def is_to_be_extended(self) -> bool:
        """Whether its output has grown enough to be compressed again."""
        return self.row is not None and self._fresh_tokens == self._compress_every

    def extend_row(self) -> None:
        """Begin to compress all tokens so far, from the latest row on."""
        self.begins_with, self.row = self.row, None
        self.cached_token_ids = (*self.prompt_token_ids, *self._following)

    @property
    def is_beginning(self) -> bool:
        """Whether its caches are compressed from the prompt's beginning first, to be parked."""
        return len(self.cached_token_ids) < len(self.prompt_token_ids)

    def tokens_from(self, start: int) -> Sequence[int]:
        """Its tokens from that one on, none of the prompt's among them."""
        return self._following[start - len(self.prompt_token_ids) :]

    @property
    def is_forced(self) -> bool:
        """Whether the next tokens are given, by a continuation."""
        return bool(self._continuation)

    def given(self, count: int) -> list[int]:
        """The first `count` of the tokens that are given."""
        return list(islice(self._continuation, count))

    @property
    def room(self) -> int:
        """Tokens to draft at the most: not past its end, nor past where its row is extended."""
        room = min(self._limits.step_tokens, self._limits.positions - self.position) - 1
        if self.row:
            room = min(room, self._compress_every - self._fresh_tokens - 1)
        return room if self._continuation else min(room, self._params.max_tokens - self._count - 1)

    def advance(self, prediction: Prediction) -> OutputDelta:
        """Choose the next token. Logits that are not finite end the request with "error"."""
        if not prediction.is_finite:
            return OutputDelta(self.request_id, self._text.finish(), (), "error")
        if self._continuation:
            return self._follow(prediction)
        changed = process_logits(prediction, self._processors)
        if changed is not prediction and not changed.is_finite:
            return OutputDelta(self.request_id, self._text.finish(), (), "error")
        token = sample(changed, self._params, self._rng)
        return self._add(token, self._logprobs(prediction, token))

    def adopt(self, token: int) -> OutputDelta:
        """Take a first token that was chosen elsewhere, from the same seed. It has no logprobs."""
        if self._params.temperature:
            self._rng.random()  # the draw that chose it
        return self._add(token, ())

    def _take(self, token: int) -> None:
        self.last_token = token
        self._following.append(token)

    def _add(self, token: int, logprobs: tuple[TokenLogprobs, ...]) -> OutputDelta:
        self._take(token)
        self._count += 1
        for processor in self._processors:
            processor.took(token)
        text, reason = self._end(token)
        return OutputDelta(self.request_id, text, (token,), reason, logprobs=logprobs)

    def _logprobs(self, prediction: Prediction, token: int) -> tuple[TokenLogprobs, ...]:
        if self._params.logprobs is None:
            return ()
        return (logprobs(prediction.logits, token, self._params.logprobs),)

    def _follow(self, prediction: Prediction) -> OutputDelta:
        """Take the continuation's next token, whatever the logits are, and score it."""
        self._take(self._continuation.popleft())
        self._known += 1
        ends = not self._continuation and not self._samples
        reason: FinishReason | None = "length" if ends else None
        if self._prompt_logprobs is None:
            scored = score(prediction.logits, self.last_token)
            return OutputDelta(self.request_id, "", (), reason, scored)
        found = logprobs(prediction.logits, self.last_token, self._prompt_logprobs)
        return OutputDelta(self.request_id, "", (), reason, logprobs=(found,))

    def _end(self, token: int) -> tuple[str, FinishReason | None]:
        """The text that a token adds, and the finish reason if the token is the last."""
        if token in self._end_tokens:
            return self._text.finish(), "stop"
        text = self._text.push(token, may_stop=self._count > self._params.min_tokens)
        if any(processor.is_complete for processor in self._processors):
            return text + self._text.finish(), "stop"
        if self._is_full and not self._text.stopped:
            text += self._text.finish()
            return text, "stop" if self._text.stopped else "length"
        return text, "stop" if self._text.stopped else None

    @property
    def _is_full(self) -> bool:
        most = 1 if self.hands_over else self._params.max_tokens
        return self._count == most or self.position >= self._limits.positions
