"""The body of /v1/responses, and the chat that it stands for.

Nothing is stored, so a conversation is always sent as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from snapexport.runtime.requests.request import MAX_LOGPROBS
from snapexport.serving.openai.bodies.chat import ChatRequest
from snapexport.serving.openai.bodies.completions import Whole
from snapexport.serving.openai.bodies.parsing import TEXT_OR_OBJECTS, Loose, Strict, check_body
from snapexport.serving.openai.http.errors import UNSUPPORTED, invalid

TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
"""Types of content with a text, and the key of it."""

Object = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Only log probabilities are ever there: nothing is encrypted, and no tool is the server's own."""


class Reasoning(Loose):
    """`reasoning`: a summary is never made."""

    effort: str | None = None


class TextOptions(Loose):
    """`text`: the form of the answer."""

    format: Object | None = None


class ResponsesStreamOptions(Loose):
    """`stream_options`: nothing is padded."""

    include_obfuscation: bool = False


def _items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _not_stored(value: Any) -> Any:
    raise PydanticCustomError(UNSUPPORTED, "responses are not stored: send the whole input")


def _never(value: Any) -> Any:
    if value:
        raise PydanticCustomError(UNSUPPORTED, "a response is answered at once: leave it out")
    return value


class ResponsesRequest(Strict):
    """Body of /v1/responses."""

    own_fields: ClassVar[Mapping[str, str]] = {
        "messages": "input",
        "response_format": "text.format",
        "max_tokens": "max_output_tokens",
    }
    """By the names of the chat's."""

    model: str
    input: Annotated[
        list[Object], Field(min_length=1), BeforeValidator(_items), WithJsonSchema(TEXT_OR_OBJECTS)
    ]
    instructions: str | None = None
    tools: list[Object] = Field(default_factory=list)
    tool_choice: str | Object = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: Reasoning = Field(default_factory=Reasoning)
    max_output_tokens: Whole | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    """Nothing is cut: a longer prompt is refused."""
    include: list[Included] = Field(default_factory=list)
    top_logprobs: Whole = Field(0, ge=0, le=MAX_LOGPROBS)
    metadata: dict[str, Any] = Field(default_factory=dict)
    """It comes back."""
    background: Annotated[bool, BeforeValidator(_never), WithJsonSchema({"const": False})] = False
    previous_response_id: Annotated[
        str | None, BeforeValidator(_not_stored), WithJsonSchema({"type": "null"})
    ] = None
    conversation: Annotated[Any, BeforeValidator(_not_stored), WithJsonSchema({"type": "null"})] = (
        None
    )

    @property
    def has_logprobs(self) -> bool:
        """Whether the tokens of texts have log probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in self.include

    def as_chat(self) -> ChatRequest:
        """The chat's body. Raises ApiError."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        given = {
            "model": self.model,
            "stream": self.stream,
            "messages": system + messages_of(self.input),
            "tools": [_tool(index, tool) for index, tool in enumerate(self.tools)],
            "tool_choice": _choice(self.tool_choice),
            "response_format": _response_format(self.text.format),
            "reasoning_effort": self.reasoning.effort,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "prompt_cache_key": self.prompt_cache_key,
            "cache_salt": self.cache_salt,
            "logprobs": self.has_logprobs,
            "top_logprobs": self.top_logprobs,
        }
        if "parallel_tool_calls" in self.model_fields_set:
            given["parallel_tool_calls"] = self.parallel_tool_calls
        return check_body(ChatRequest, given)


def messages_of(items: Sequence[Mapping[str, Any]]) -> list[Object]:
    """The chat's messages. The assistant's items in a row are one message. Raises ApiError."""
    messages: list[Object] = []
    for index, item in enumerate(items):
        message = _message(f"input.{index}", item)
        last = messages[-1] if messages else None
        if last and message["role"] == last["role"] == "assistant":
            _join(last, message)
        else:
            messages.append(message)
    return messages


def _join(last: Object, message: Object) -> None:
    for key, value in message.items():
        if key == "tool_calls":
            last[key] = last.get(key, []) + value
        elif key != "role":
            last[key] = "\n".join(filter(None, (last.get(key), value)))


def _message(where: str, item: Mapping[str, Any]) -> Object:
    kind = item.get("type", "message")
    if kind == "message":
        return {
            "role": item.get("role"),
            "content": _text(f"{where}.content", item.get("content")),
        }
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        output = _text(f"{where}.output", item.get("output"))
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        return {"role": "assistant", "reasoning_content": _text(f"{where}.content", parts)}
    if kind == "item_reference":
        raise invalid("responses are not stored: send the item itself", where, UNSUPPORTED)
    raise _type_error(where, kind, "messages, function calls, their outputs and reasoning")


def _text(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where} must be a text, or a list of parts", where)
    return "\n".join(_texts(where, content))


def _texts(where: str, parts: Iterable[Any]) -> Iterable[str]:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        key = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise _type_error(f"{where}.{index}", kind, "texts")
        if not isinstance(part.get(key), str):
            raise invalid(f"{where}.{index}.{key} must be a text", where)
        yield part[key]


def _tool(index: int, tool: Mapping[str, Any]) -> Object:
    if tool.get("type") != "function":
        raise _type_error(f"tools.{index}", tool.get("type"), "functions")
    function = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key)}
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _choice(choice: str | Mapping[str, Any]) -> str | Object:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        inner = {"mode": choice.get("mode"), "tools": [_choice(one) for one in choice["tools"]]}
        return {"type": "allowed_tools", "allowed_tools": inner}
    if choice.get("type") != "function":
        raise _type_error("tool_choice", choice.get("type"), "functions")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _response_format(given: Object | None) -> Object | None:
    """A chat's response_format, which has the schema in an object of its own."""
    kind = (given or {}).get("type", "text")
    if given is None or kind != "json_schema":
        return None if kind == "text" else {"type": kind}
    return {"type": kind, kind: {key: given[key] for key in given if key != "type"}}


def _type_error(where: str, kind: object, known: str) -> Exception:
    what = f"{where}: the type {f'{kind}'[:40]!r} is not supported: the server knows {known}"
    return invalid(what, where, UNSUPPORTED)
