"""Writes answers as /v1/messages does: blocks, and named events about them."""

import secrets
from collections.abc import Sequence

from snapexport.runtime.chat.parsers.parser import Content, Reasoning, load_json
from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.model import Model
from snapexport.serving.openai.bodies.messages import MessagesRequest, stop_sequence
from snapexport.serving.openai.http.errors import ApiError, as_anthropic
from snapexport.serving.openai.requests import Prepared
from snapexport.serving.openai.writers.writer import (
    Answer,
    CallEnd,
    CallHead,
    CallPiece,
    Object,
    Part,
    Usage,
    Writer,
)

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
KINDS = {Content: ("text", "text_delta"), Reasoning: ("thinking", "thinking_delta")}
"""Of texts: the type of their blocks, whose text has that name too, and of their deltas."""
MOST_STOP_TOKENS = 1024
"""The last tokens, in which the text that ended an answer is looked for."""


class MessagesWriter(Writer):
    """Writes one message."""

    names_events = True

    def __init__(self, model: Model, body: MessagesRequest, prepared: Prepared) -> None:
        self._model, self._stops = model, body.stop_sequences
        (request,) = prepared.requests
        params = request.params
        self._end_tokens = {*model.limits.eos_token_id, *(params.stop_token_ids if params else ())}
        self._id = f"msg_{secrets.token_hex(12)}"
        self._answer = Answer(prepared.reading)
        self._usage = Usage(prepared.prompt_tokens, 1)
        self._blocks: list[Object] = []
        self._open: type[Part] | None = None
        self._arguments = ""
        """Of the last call."""
        self._events: list[Object] = []
        self._has_begun = False
        self._ends: Object = {"stop_reason": None, "stop_sequence": None}
        self._tail: tuple[int, ...] = ()

    def whole(self, answers: Sequence[OutputDelta]) -> Object:
        """The message object."""
        (answer,) = answers
        self._usage.add(0, answer)
        self._read(answer)
        self._close()
        return self._message(self._blocks, self._counts())

    def chunks(self, index: int, output: OutputDelta) -> list[Object]:
        """The events of one output."""
        self._usage.add(0, output)
        if not self._has_begun:
            self._has_begun = True
            self._emit("message_start", message=self._message([], self._counts()))
        self._read(output)
        return self._take_events()

    def last_chunks(self) -> list[Object]:
        """The events that end the last block and the message."""
        self._close()
        counts = {"output_tokens": self._usage.completion}
        self._emit("message_delta", delta=self._ends, usage=counts)
        self._emit("message_stop")
        return self._take_events()

    def fail(self, error: ApiError) -> list[Object]:
        """An event of the failure."""
        return [as_anthropic(error)]

    def _read(self, output: OutputDelta) -> None:
        self._tail = (*self._tail, *output.token_ids)[-MOST_STOP_TOKENS:]
        for part in self._answer.parts(output):
            self._add(part)
        if output.finish_reason:
            self._ends = self._ending(output)

    def _ending(self, output: OutputDelta) -> Object:
        reason = self._answer.finish_reason(output)
        stopped = self._found_stop() if reason == "stop" else None
        why = "stop_sequence" if stopped else REASONS.get(reason or "", "end_turn")
        return {"stop_reason": why, "stop_sequence": stopped}

    def _found_stop(self) -> str | None:
        """The stop sequence that ended the answer, if none of the end tokens did."""
        tokenizer = self._model.tokenizer
        if not self._stops or tokenizer is None or self._end_tokens.issuperset(self._tail[-1:]):
            return None
        return stop_sequence(tokenizer.decode(self._tail), self._stops)

    def _add(self, part: Part) -> None:
        if isinstance(part, CallHead):
            self._close()
            block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            self._begin(block)
            self._open, self._arguments = CallHead, ""
        elif isinstance(part, CallPiece):
            self._arguments += part.text
            self._emit_delta({"type": "input_json_delta", "partial_json": part.text})
        elif isinstance(part, CallEnd):
            self._close()
        else:
            self._add_text(part)

    def _add_text(self, part: Content | Reasoning) -> None:
        name, delta = KINDS[type(part)]
        if self._open is not type(part):
            self._close()
            signature = {"signature": ""} if name == "thinking" else {}
            self._begin({"type": name, name: ""} | signature)
            self._open = type(part)
        self._blocks[-1][name] += part.text
        self._emit_delta({"type": delta, name: part.text})

    def _begin(self, block: Object) -> None:
        self._blocks.append(block)
        self._emit("content_block_start", index=len(self._blocks) - 1, content_block=dict(block))

    def _close(self) -> None:
        """End the block that is open. Arguments that are not a JSON object become an empty one."""
        if self._open is None:
            return
        if self._open is CallHead:
            value = load_json(self._arguments)
            self._blocks[-1]["input"] = value if isinstance(value, dict) else {}
        self._open = None
        self._emit("content_block_stop", index=len(self._blocks) - 1)

    def _emit_delta(self, delta: Object) -> None:
        self._emit("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _emit(self, kind: str, **fields: object) -> None:
        self._events.append({"type": kind} | fields)

    def _take_events(self) -> list[Object]:
        events, self._events = self._events, []
        return events

    def _message(self, blocks: Sequence[Object], counts: Object) -> Object:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model.name,
            "content": list(blocks),
            **self._ends,
            "usage": counts,
        }

    def _counts(self) -> Object:
        """Tokens that parked rows held are not among the input's."""
        used = self._usage
        return {
            "input_tokens": used.prompt - used.cached,
            "cache_read_input_tokens": used.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": used.completion,
        }
