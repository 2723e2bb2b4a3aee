"""OpenAI's objects: chats and completions, whole and in chunks. Plain dicts, ready for JSON.

A shape is made for one request. It knows its answers by index and nothing of where they come from.
"""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from snapexport.serving.openai.likelihoods import CompletionLikelihoods, of_chat
from snapexport.serving.openai.pieces import Answer, Chosen, Piece

Object = dict[str, Any]


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """What was read and written. A prompt counts once, however many answers it gets."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Shape(ABC):
    """The objects of one request."""

    prefix: str
    whole_name: str
    chunk_name: str

    def __init__(self, model: str, has_logprobs: bool) -> None:
        self._head: Object = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        self._has_logprobs = has_logprobs
        self._begun: set[int] = set()

    def whole(self, answers: Sequence[Answer], usage: Mapping[str, int]) -> Object:
        """The one object of an answer that is not streamed."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self._head | {"object": self.whole_name, "choices": choices, "usage": usage}

    def chunks(self, index: int, piece: Piece) -> list[Object]:
        """What a piece of an answer becomes in a stream."""
        opening = [] if index in self._begun else self._opening(index)
        self._begun.add(index)
        return [self.chunk([choice]) for choice in (*opening, *self._parts(index, piece))]

    def chunk(self, choices: Sequence[Object]) -> Object:
        """A chunk of the given choices; that of the usage has none."""
        return self._head | {"object": self.chunk_name, "choices": list(choices)}

    @abstractmethod
    def _choice(self, index: int, answer: Answer) -> Object: ...

    @abstractmethod
    def _opening(self, index: int) -> list[Object]: ...

    @abstractmethod
    def _parts(self, index: int, piece: Piece) -> list[Object]: ...


class ChatShape(Shape):
    """/v1/chat/completions: the role comes first, the reason to end last, each by itself."""

    prefix = "chatcmpl"
    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _choice(self, index: int, answer: Answer) -> Object:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": answer.finish_reason,
        }

    def _opening(self, index: int) -> list[Object]:
        return [_delta(index, {"role": "assistant", "content": ""})]

    def _parts(self, index: int, piece: Piece) -> list[Object]:
        parts = []
        if piece.text or piece.logprobs:
            parts.append(_delta(index, {"content": piece.text}, self._logprobs(piece.logprobs)))
        if piece.finish_reason:
            parts.append(_delta(index, {}, finish_reason=piece.finish_reason))
        return parts

    def _logprobs(self, chosen: Sequence[Chosen]) -> Object | None:
        return of_chat(chosen) if self._has_logprobs else None


def _delta(
    index: int, delta: Object, logprobs: Object | None = None, finish_reason: str | None = None
) -> Object:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


class CompletionShape(Shape):
    """/v1/completions, with the prompts before their answers where they are to be echoed."""

    prefix = "cmpl"
    whole_name = chunk_name = "text_completion"

    def __init__(self, model: str, has_logprobs: bool, echoes: Sequence[str] = ()) -> None:
        """echoes: the prompt of each answer."""
        super().__init__(model, has_logprobs)
        self._echoes = echoes
        self._likelihoods: dict[int, CompletionLikelihoods] = {}

    def _choice(self, index: int, answer: Answer) -> Object:
        logprobs = self._logprobs(index, answer.logprobs)
        return _text(index, self._echo(index) + answer.text, logprobs, answer.finish_reason)

    def _opening(self, index: int) -> list[Object]:
        return [_text(index, echo)] if (echo := self._echo(index)) else []

    def _parts(self, index: int, piece: Piece) -> list[Object]:
        if not (piece.text or piece.logprobs or piece.finish_reason):
            return []
        return [
            _text(index, piece.text, self._logprobs(index, piece.logprobs), piece.finish_reason)
        ]

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _logprobs(self, index: int, chosen: Sequence[Chosen]) -> Object | None:
        if not self._has_logprobs:
            return None
        writer = self._likelihoods.setdefault(index, CompletionLikelihoods())
        return writer.write(chosen)


def _text(
    index: int, text: str, logprobs: Object | None = None, finish_reason: str | None = None
) -> Object:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
