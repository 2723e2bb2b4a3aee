"""Writes answers as /v1/responses does: items, and numbered events about them."""

import secrets
import time
from collections.abc import Sequence

from snapexport.runtime.chat.parsers.parser import Content, Reasoning
from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.model import Model
from snapexport.serving.openai.bodies.responses import ResponsesRequest
from snapexport.serving.openai.http.errors import ApiError
from snapexport.serving.openai.requests import Prepared
from snapexport.serving.openai.writers.choices import chat_logprobs
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

KINDS = {Content: ("message", "output_text"), Reasoning: ("reasoning", "reasoning_text")}
"""Of texts: the type of their items, and of the part that an item has."""


class ResponsesWriter(Writer):
    """Writes one response. The events of a stream have sequence numbers."""

    names_events = True

    def __init__(self, model: Model, body: ResponsesRequest, prepared: Prepared) -> None:
        self._head = _head(model.name, body)
        self._answer = Answer(prepared.reading)
        self._usage = Usage(prepared.prompt_tokens, 1)
        self._items: list[Object] = []
        self._open: type[Content | Reasoning | CallHead] | None = None
        """The kind of the last item, if more may come to it."""
        self._events: list[Object] = []
        self._numbered = 0
        self._ended: str | None = None
        self._text_of = model.text_of if body.has_logprobs else None
        self._logprobs: list[Object] = []
        """Of tokens whose text has not come yet."""

    def whole(self, answers: Sequence[OutputDelta]) -> Object:
        """The response object."""
        (answer,) = answers
        self._take(answer)
        self._close()
        return self._response(self._status)

    def chunks(self, index: int, output: OutputDelta) -> list[Object]:
        """The events of one output."""
        if not self._numbered:
            self._emit("created", response=self._response("in_progress"))
            self._emit("in_progress", response=self._response("in_progress"))
        self._take(output)
        return self._take_events()

    def last_chunks(self) -> list[Object]:
        """The events that end the last item and the response."""
        self._close()
        self._emit(self._status, response=self._response(self._status))
        return self._take_events()

    def fail(self, error: ApiError) -> list[Object]:
        """An event of the failure."""
        about = error.body["error"]
        reason = {"code": about["code"] or "server_error", "message": about["message"]}
        response = self._response("failed") | {"error": reason}
        self._emit("failed", response=response)
        return self._take_events()

    def _take(self, output: OutputDelta) -> None:
        self._usage.add(0, output)
        if self._text_of:
            self._logprobs += chat_logprobs(output.logprobs, self._text_of)["content"]
        for part in self._answer.parts(output):
            self._add(part)
        self._ended = output.finish_reason or self._ended

    def _add(self, part: Part) -> None:
        if not isinstance(part, Content):
            self._logprobs = []
        if isinstance(part, CallHead):
            self._close()
            self._begin_call(part)
        elif isinstance(part, CallPiece):
            self._items[-1]["arguments"] += part.text
            self._emit_call("delta", delta=part.text)
        elif isinstance(part, CallEnd):
            self._close_call(part.is_valid)
        else:
            self._add_text(part)

    def _add_text(self, part: Content | Reasoning) -> None:
        if self._open is not type(part):
            self._close()
            self._begin(type(part))
        item = self._items[-1]
        item["content"][0]["text"] += part.text
        more: Object = {}
        if isinstance(part, Content):
            more, self._logprobs = {"logprobs": self._logprobs}, []
            item["content"][0]["logprobs"] = [*item["content"][0]["logprobs"], *more["logprobs"]]
        self._emit_part(f"{KINDS[type(part)][1]}.delta", item, delta=part.text, **more)

    def _begin(self, kind: type[Content] | type[Reasoning]) -> None:
        """Begin an item with a part whose text is empty."""
        name, part_type = KINDS[kind]
        item: Object = {"id": _id(name), "type": name, "status": "in_progress", "content": []}
        own: Object = {"role": "assistant"} if kind is Content else {"summary": []}
        item |= own
        self._items.append(item)
        self._open = kind
        self._emit_item("output_item.added", item)
        part: Object = {"type": part_type, "text": ""}
        part |= {"annotations": [], "logprobs": []} if kind is Content else {}
        item["content"].append(part)
        self._emit_part("content_part.added", item, part=dict(item["content"][0]))

    def _close(self) -> None:
        """End the item that is open."""
        if self._open is CallHead:
            self._close_call(is_valid=False)
        elif self._open:
            self._close_text(self._open)

    def _close_text(self, kind: type[Content | Reasoning | CallHead]) -> None:
        item, part_type = self._items[-1], KINDS[kind][1]
        text = item["content"][0]["text"]
        logprobs = {"logprobs": item["content"][0]["logprobs"]} if kind is Content else {}
        self._open = None
        item["status"] = "incomplete" if self._ended == "length" else "completed"
        self._emit_part(f"{part_type}.done", item, text=text, **logprobs)
        self._emit_part("content_part.done", item, part=dict(item["content"][0]))
        self._emit_item("output_item.done", item)

    def _begin_call(self, call: CallHead) -> None:
        item: Object = {"id": _id("function_call"), "type": "function_call", "call_id": call.id}
        item |= {"name": call.name, "arguments": "", "status": "in_progress"}
        self._items.append(item)
        self._open = CallHead
        self._emit_item("output_item.added", item)

    def _close_call(self, is_valid: bool) -> None:
        item, self._open = self._items[-1], None
        self._emit_call("done", name=item["name"], arguments=item["arguments"])
        item["status"] = "completed" if is_valid else "incomplete"
        self._emit_item("output_item.done", item)

    def _emit_call(self, kind: str, /, **fields: object) -> None:
        where = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        self._emit(f"function_call_arguments.{kind}", **where, **fields)

    def _emit_item(self, name: str, item: Object) -> None:
        copied = item | ({"content": list(item["content"])} if "content" in item else {})
        self._emit(name, output_index=len(self._items) - 1, item=copied)

    def _emit_part(self, name: str, item: Object, **fields: object) -> None:
        where = {"item_id": item["id"], "output_index": len(self._items) - 1, "content_index": 0}
        self._emit(name, **where, **fields)

    def _emit(self, kind: str, /, **fields: object) -> None:
        number = {"type": f"response.{kind}", "sequence_number": self._numbered}
        self._events.append(number | fields)
        self._numbered += 1

    def _take_events(self) -> list[Object]:
        events, self._events = self._events, []
        return events

    @property
    def _status(self) -> str:
        return "incomplete" if self._ended == "length" else "completed"

    def _response(self, status: str) -> Object:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._head | {
            "status": status,
            "incomplete_details": cut,
            "output": list(self._items),
            "usage": None if status == "in_progress" else self._counts(),
        }

    def _counts(self) -> Object:
        used = self._usage
        return {
            "input_tokens": used.prompt,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
            "output_tokens": used.completion,
            "output_tokens_details": {"reasoning_tokens": 0},  # not counted apart
            "total_tokens": used.prompt + used.completion,
        }


def _id(kind: str) -> str:
    prefixes = {"message": "msg", "reasoning": "rs", "function_call": "fc", "response": "resp"}
    return f"{prefixes[kind]}_{secrets.token_hex(16)}"


def _head(model: str, body: ResponsesRequest) -> Object:
    """The fields that stay the same."""
    return {
        "id": _id("response"),
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": body.text.format or {"type": "text"}},
        "tool_choice": body.tool_choice,
        "tools": body.tools,
        "top_p": body.top_p,
        "truncation": body.truncation,
        "metadata": body.metadata,
        "top_logprobs": body.top_logprobs,
    }
