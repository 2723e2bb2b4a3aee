"""Writes answers as /v1/chat/completions and /v1/completions do: choices, whole or in chunks.

A chat's log probabilities name a token by its text, and give its bytes. A completion's have only
names: those of parts of characters are `bytes:\\xe2\\x82`, as OpenAI's are, so that alternatives
stay apart.
"""

import codecs
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from snapexport.runtime.chat.parsers.parser import Content, Reasoning
from snapexport.runtime.requests.request import OutputDelta, TokenLogprobs
from snapexport.serving.model import LEAST, Model, TokenText
from snapexport.serving.openai.bodies.completions import RequestBody
from snapexport.serving.openai.http.errors import ApiError
from snapexport.serving.openai.requests import Prepared
from snapexport.serving.openai.writers.writer import (
    Answer,
    CallHead,
    CallPiece,
    Object,
    Part,
    Usage,
    Writer,
)


def chat_logprobs(tokens: Iterable[TokenLogprobs], text_of: TokenText) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    content = [
        _entry(token.token_id, token.logprob, text_of)
        | {"top_logprobs": [_entry(*other, text_of) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, text_of: TokenText) -> dict[str, Any]:
    return {
        "token": text_of(token),
        "logprob": max(logprob, LEAST),
        "bytes": list(text_of.data(token)),
    }


def _name(token: int, text_of: TokenText) -> str:
    if not text_of.is_part(token):
        return text_of(token)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text_of.data(token))


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class CompletionLogprobs:
    """Writes `logprobs` of a completion's choice, part by part.

    first: a token before all others, which has no probability. offset: characters of the tokens so
    far, from the beginning of the choice's text.
    """

    text_of: TokenText
    first: int | None = None
    offset: int = 0
    _decoder: codecs.IncrementalDecoder = field(default_factory=_decoder)

    def write(self, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The four columns for the next tokens."""
        rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []
        if self.first is not None:
            rows.append((_name(self.first, self.text_of), None, None, self._advance(self.first)))
            self.first = None
        for token in tokens:
            name, logprob = _name(token.token_id, self.text_of), max(token.logprob, LEAST)
            top = {_name(other, self.text_of): max(value, LEAST) for other, value in token.top}
            rows.append((name, logprob, top | {name: logprob}, self._advance(token.token_id)))
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[column] for row in rows] for column, name in enumerate(names)}

    def _advance(self, token: int) -> int:
        """The token's offset. A character counts with the last of its parts."""
        before = self.offset
        self.offset += len(self._decoder.decode(self.text_of.data(token)))
        return before


DONE = b"data: [DONE]\n\n"


class ResponseWriter(Writer):
    """Writes choices: a whole answer, or the chunks of a stream."""

    last = DONE
    prefix: str
    whole_name: str
    chunk_name: str

    def __init__(self, model: Model, body: RequestBody, prepared: Prepared) -> None:
        self._head: Object = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model.name,
        }
        self._text_of = None if body.top_logprobs_count is None else model.text_of
        self._usage = Usage(prepared.prompt_tokens, body.n)
        self._includes_usage, self._counts_on = body.includes_usage, body.counts_on
        self._echoes = prepared.echoes
        self._begun: set[int] = set()
        self._reading, self._answers = prepared.reading, dict[int, Answer]()
        self._prompt_text = prepared.prompt_text

    def whole(self, answers: Sequence[OutputDelta]) -> Object:
        """The object of an answer that is not streamed."""
        choices = []
        for index, answer in enumerate(answers):
            self._usage.add(index, answer)
            choices.append(self._choice(index, answer))
        return self._head | {
            "object": self.whole_name,
            "choices": choices,
            "usage": self._usage.as_json(),
            **self._say_kept(answers[0]),
        }

    def chunks(self, index: int, output: OutputDelta) -> list[Object]:
        """The chunks of one output."""
        self._usage.add(index, output)
        opening = [] if index in self._begun else self._opening(index)
        self._begun.add(index)
        so_far = self._usage.as_json() if self._counts_on else None
        idle: Object = {"usage": so_far} if self._includes_usage else {}
        chunks = [self._chunk([choice]) | idle for choice in opening + self._parts(index, output)]
        if kept := self._say_kept(output):
            chunks.append(self._chunk([]) | idle | kept)
        return chunks

    def last_chunks(self) -> list[Object]:
        """The chunks after the last output: the usage, if the client wants it."""
        if not self._includes_usage:
            return []
        return [self._chunk([]) | {"usage": self._usage.as_json()}]

    def fail(self, error: ApiError) -> list[Object]:
        """The error object; OpenAI's client raises it."""
        return [error.body]

    def _say_kept(self, output: OutputDelta) -> Object:
        """The field `kept`, once for all answers, if the request asked for it."""
        if self._prompt_text is None or output.held is None:
            return {}
        shown, self._prompt_text = self._prompt_text, None
        return {"kept": shown.parts(output.held)}

    def _answer(self, index: int) -> Answer:
        if index not in self._answers:
            self._answers[index] = Answer(self._reading)
        return self._answers[index]

    def _chunk(self, choices: Sequence[Object]) -> Object:
        return self._head | {"object": self.chunk_name, "choices": list(choices)}

    @abstractmethod
    def _choice(self, index: int, answer: OutputDelta) -> Object: ...

    @abstractmethod
    def _opening(self, index: int) -> list[Object]: ...

    @abstractmethod
    def _parts(self, index: int, output: OutputDelta) -> list[Object]: ...


class ChatWriter(ResponseWriter):
    """For /v1/chat/completions: the first chunk has only the role, the last the finish_reason."""

    prefix = "chatcmpl"
    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _choice(self, index: int, answer: OutputDelta) -> Object:
        read = self._answer(index)
        return {
            "index": index,
            "message": _message(read.parts(answer)),
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": read.finish_reason(answer),
        }

    def _opening(self, index: int) -> list[Object]:
        return [_delta(index, {"role": "assistant", "content": ""})]

    def _parts(self, index: int, output: OutputDelta) -> list[Object]:
        read = self._answer(index)
        deltas = [delta for part in read.parts(output) for delta in _deltas(part)]
        if output.logprobs and not deltas:
            deltas = [{"content": ""}]
        logprobs = self._logprobs(output.logprobs)
        chunks = [
            _delta(index, delta, None if place else logprobs) for place, delta in enumerate(deltas)
        ]
        if output.finish_reason:
            chunks.append(_delta(index, {}, finish_reason=read.finish_reason(output)))
        return chunks

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Object | None:
        return chat_logprobs(tokens, self._text_of) if self._text_of else None


def _message(parts: Sequence[Part]) -> Object:
    """A whole message. Beside calls, no content is null."""
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls: dict[int, Object] = {}
    for part in parts:
        if isinstance(part, CallHead):
            function = {"name": part.name, "arguments": ""}
            calls[part.index] = {"id": part.id, "type": "function", "function": function}
        elif isinstance(part, CallPiece):
            calls[part.index]["function"]["arguments"] += part.text
    message: Object = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message |= {"content": content or None, "tool_calls": list(calls.values())}
    return message


def _deltas(part: Part) -> list[Object]:
    """The deltas of a part: of a call first the name, then pieces of the arguments."""
    if isinstance(part, Content):
        return [{"content": part.text}]
    if isinstance(part, Reasoning):
        return [{"reasoning_content": part.text}]
    if isinstance(part, CallPiece):
        call: Object = {"index": part.index, "function": {"arguments": part.text}}
    elif isinstance(part, CallHead):
        call = {"index": part.index, "id": part.id, "type": "function"}
        call["function"] = {"name": part.name, "arguments": ""}
    else:
        return []
    return [{"tool_calls": [call]}]


def _delta(
    index: int, delta: Object, logprobs: Object | None = None, finish_reason: str | None = None
) -> Object:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


class CompletionWriter(ResponseWriter):
    """For /v1/completions; with `echo`, each answer begins with its prompt."""

    prefix = "cmpl"
    whole_name = chunk_name = "text_completion"

    def __init__(self, model: Model, body: RequestBody, prepared: Prepared) -> None:
        super().__init__(model, body, prepared)
        self._logprob_writers: dict[int, CompletionLogprobs] = {}
        self._first_tokens = prepared.first_tokens

    def _choice(self, index: int, answer: OutputDelta) -> Object:
        logprobs = self._logprobs(index, answer.logprobs)
        return _text(index, self._echo(index) + answer.text, logprobs, answer.finish_reason)

    def _opening(self, index: int) -> list[Object]:
        return [_text(index, echo)] if (echo := self._echo(index)) else []

    def _parts(self, index: int, output: OutputDelta) -> list[Object]:
        if not (output.text or output.logprobs or output.finish_reason):
            return []
        return [
            _text(index, output.text, self._logprobs(index, output.logprobs), output.finish_reason)
        ]

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprobs]) -> Object | None:
        if self._text_of is None:
            return None
        first = self._first_tokens[index] if self._first_tokens else None
        fresh = CompletionLogprobs(self._text_of, first)
        return self._logprob_writers.setdefault(index, fresh).write(tokens)


def _text(
    index: int, text: str, logprobs: Object | None = None, finish_reason: str | None = None
) -> Object:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
