"""The body of /v1/messages, Anthropic's form, and the chat that it stands for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from snapexport.serving.openai.bodies.chat import ChatRequest
from snapexport.serving.openai.bodies.completions import Whole
from snapexport.serving.openai.bodies.parsing import TEXT_OR_OBJECTS, Loose, Strict, check_body
from snapexport.serving.openai.http.errors import UNSUPPORTED, invalid

Object = dict[str, Any]
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Turn(Loose):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Object]


def _custom(kind: Any) -> Any:
    if kind == "custom" or not isinstance(kind, str):
        return kind
    what = f"the type '{kind:.40}' is not supported: the server runs no tools of its own"
    raise PydanticCustomError(UNSUPPORTED, what)


class ClientTool(Loose):
    """A tool of the client's own."""

    type: Annotated[Literal["custom"], BeforeValidator(_custom)] = "custom"
    name: str
    description: str | None = None
    input_schema: Object
    strict: bool | None = None


class ClientToolChoice(Loose):
    """`tool_choice`."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Loose):
    """`thinking`: its budget has no effect."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(Loose):
    """`output_config`."""

    effort: str | None = None
    format: Object | None = None


def _system(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Prompt(Strict):
    """The fields that make the prompt, which are all of /v1/messages/count_tokens."""

    model: str
    messages: list[Turn] = Field(min_length=1)
    system: Annotated[list[Object], BeforeValidator(_system), WithJsonSchema(TEXT_OR_OBJECTS)] = (
        Field(default_factory=list)
    )
    tools: list[ClientTool] = Field(default_factory=list)
    tool_choice: ClientToolChoice = Field(default_factory=lambda: ClientToolChoice(type="auto"))
    thinking: Thinking | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    cache_control: Object | None = None
    context_management: Object | None = None
    """Nothing is cached or cut on request."""

    def as_chat(self) -> ChatRequest:
        """The chat's body. Raises ApiError."""
        return check_body(ChatRequest, self.chat_fields())

    def chat_fields(self) -> Object:
        """Fields of the chat's body. Raises ApiError."""
        system = "\n".join(_texts("system", self.system))
        messages = [{"role": "system", "content": system}] if system else []
        for index, turn in enumerate(self.messages):
            messages += _messages(f"messages.{index}", turn)
        # As Anthropic's models do, the answer goes on from a last message of the assistant's.
        goes_on = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
        thinks = self.thinking and {"enable_thinking": self.thinking.type != "disabled"}
        choice = self.tool_choice
        asked = "disable_parallel_tool_use" in choice.model_fields_set
        return {
            "model": self.model,
            "messages": messages,
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
            "tools": [_tool(tool) for tool in self.tools],
            "tool_choice": _choice(choice),
            **({"parallel_tool_calls": not choice.disable_parallel_tool_use} if asked else {}),
            "chat_template_kwargs": thinks,
            "reasoning_effort": self.output_config.effort,
            "response_format": _response_format(self.output_config.format),
        }


class MessagesRequest(Prompt):
    """Body of /v1/messages."""

    own_fields: ClassVar[Mapping[str, str]] = {}
    max_tokens: Whole = Field(ge=1)
    stop_sequences: list[str] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    cache_salt: str | None = None

    def chat_fields(self) -> Object:
        """Fields of the chat's body. Raises ApiError."""
        return super().chat_fields() | {
            "stream": self.stream,
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "cache_salt": self.cache_salt,
        }


def _messages(where: str, turn: Turn) -> list[Object]:
    """The chat's messages of a turn: results of tools, then what else it says. Raises ApiError."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Object] = []
    results: list[Object] = []
    for index, block in enumerate(turn.content):
        place = f"{where}.content.{index}"
        match block.get("type"):
            case "tool_use":
                calls.append(_call(place, block))
            case "tool_result":
                results.append(_result(place, block))
            case "thinking":
                thoughts += _texts(place, [{"type": "text", "text": block.get("thinking")}])
            case "redacted_thinking":
                pass
            case _:
                texts += _texts(place, [block])
    if results and not (texts or thoughts or calls):
        return results
    said: Object = {"role": turn.role, "content": "\n".join(texts)}
    said |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    if calls:
        said |= {"tool_calls": calls, "content": said["content"] or None}
    return [*results, said]


def _call(where: str, block: Mapping[str, Any]) -> Object:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.input must be an object", where)
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(where: str, block: Mapping[str, Any]) -> Object:
    content = block.get("content") or ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    text = "\n".join(_texts(f"{where}.content", parts))
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}


def _texts(where: str, blocks: Iterable[Any]) -> list[str]:
    """The texts of blocks. Raises ApiError for other ones."""
    found = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text":
            what = f"{where}: a block of type {f'{kind}'[:40]!r} is not supported"
            raise invalid(f"{what}: the model reads only text", where, UNSUPPORTED)
        if not isinstance(block.get("text"), str):
            raise invalid(f"{where} must have a text", where)
        found.append(block["text"])
    return found


def _tool(tool: ClientTool) -> Object:
    function: Object = {"name": tool.name, "parameters": tool.input_schema}
    function |= {"description": tool.description} if tool.description else {}
    function |= {"strict": tool.strict} if tool.strict is not None else {}
    return {"type": "function", "function": function}


def _choice(choice: ClientToolChoice) -> str | Object:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return CHOICES[choice.type]


def _response_format(given: Mapping[str, Any] | None) -> Object | None:
    if given is None:
        return None
    schema = {"name": "answer", "schema": given.get("schema"), "strict": True}
    return {"type": given.get("type"), "json_schema": schema}


def stop_sequence(text: str, stops: Sequence[str]) -> str | None:
    """The one that a text came to first; None if it has none."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1] if found else None
