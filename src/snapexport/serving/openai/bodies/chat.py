"""The body of a chat: messages, tools and the choice among them. Content is text, or text parts.

Knows no template's words and no parser.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from snapexport.runtime.chat.chat_prompts import Chat, Ending
from snapexport.runtime.requests.request import MAX_LOGPROBS
from snapexport.serving.openai.bodies.completions import RequestBody, Whole
from snapexport.serving.openai.bodies.parsing import Loose, Strict
from snapexport.serving.openai.http.errors import UNSUPPORTED

MOST_TOOLS = 128
"""OpenAI's limit."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class Function(BaseModel):
    """A function that the model may call. Further keys go to the template as they are."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Loose):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function

    def as_json(self) -> dict[str, Any]:
        """The object that the chat template gets."""
        given = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": given}


class NamedFunction(Loose):
    """The function of a named choice."""

    name: Name


class NamedTool(Loose):
    """A choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


class Allowed(Loose):
    """The tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(Loose):
    """A choice of some tools: the others are not shown."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedTool | AllowedTools, Field(discriminator="type")]
)


class CalledFunction(BaseModel):
    """The function of a call in history."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str = Field(min_length=1)
    arguments: str | dict[str, Any] = "{}"


class ToolCall(BaseModel):
    """A call in history."""

    model_config = ConfigDict(extra="allow", strict=True)

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


def names_of(choice: ToolChoice) -> set[str]:
    """The tools that a choice names."""
    if isinstance(choice, AllowedTools):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return {choice.function.name} if isinstance(choice, NamedTool) else set()


def may_call(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that are shown to the model."""
    if isinstance(choice, AllowedTools):
        return [tool for tool in tools if tool.function.name in names_of(choice)]
    return [] if choice == "none" else list(tools)


def must_call(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools of which an answer must call one."""
    if isinstance(choice, NamedTool):
        return [tool for tool in tools if tool.function.name in names_of(choice)]
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedTools) else choice
    return may_call(tools, choice) if mode == "required" else []


def _join_parts(content: Any) -> Any:
    """A list of text parts as one text, each part on lines of its own."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not _is_text_part(part):
            raise _why_no_text(part)
    return "\n".join(part[part["type"]] for part in content)


TEXT_PARTS = ("text", "refusal")


def _is_text_part(part: Any) -> bool:
    """Whether it has a text. What else it has, such as `cache_control`, changes no answer."""
    if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
        return False
    return isinstance(part.get(part["type"]), str)


def _why_no_text(part: Any) -> Exception:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in TEXT_PARTS:
        what = f"a part of content of type '{kind:.40}' is not supported"
        return PydanticCustomError(UNSUPPORTED, f"{what}: the model reads only text")
    return ValueError('a part of content must be {"type": "text", "text": "..."}')


CONTENT = {
    "anyOf": [
        {"type": "string"},
        {"type": "null"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"enum": list(TEXT_PARTS)}},
                "required": ["type"],
            },
        },
    ]
}
"""What content may be, as JSON Schema."""


class Message(BaseModel):
    """One turn of a chat.

    Further keys, such as `name` and `reasoning_content`, go to the template as they are. Content is
    None only beside tool calls; an assistant's may be missing.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_join_parts), WithJsonSchema(CONTENT)]
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
        """Drop empty fields, which messages of this server have when a client sends them back."""
        if not isinstance(value, dict):
            return value
        given = {name: one for name, one in value.items() if one is not None and one != []}
        if "audio" in given:
            raise PydanticCustomError(UNSUPPORTED, "audio is not supported: leave it out")
        if "function_call" in given or given.get("role") == "function":
            what = "function calls of the older form are not supported"
            raise PydanticCustomError(UNSUPPORTED, f"{what}: use tool_calls, and the role tool")
        if given.get("role") == "assistant":
            said = given.get("refusal") or ""
            given.setdefault("content", None if given.get("tool_calls") else said)
        return given

    @model_validator(mode="after")
    def _check_calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, not of the role {self.role}")
        return self


class Conversation(Strict):
    """Fields that the chat template turns into a prompt."""

    messages: list[Message] = Field(min_length=1)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """vLLM's: values for names that the template reads, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """One of these names."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """vLLM's: the answer goes on from the last message's text."""
    tools: list[Tool] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError("continue_final_message needs add_generation_prompt: false")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ValueError("tools has two functions of one name")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice required needs tools")
        if not names_of(self.tool_choice) <= set(names):
            raise ValueError("tool_choice names a function that is not in tools")
        return self

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools that are shown to the model: none if it must not call any."""
        return may_call(self.tools, self.tool_choice)

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which the answer must call one; none if it may be a text."""
        return must_call(self.tools, self.tool_choice)

    def as_runtimes(self) -> Chat:
        """The conversation for the chat template. Raises UserError."""
        effort = self.reasoning_effort
        options = {} if effort is None else {"reasoning_effort": effort}
        end: Ending = "text" if self.continue_final_message else "message"
        # Small models don't end a list of calls: several are for clients that ask for them.
        asked = self.parallel_tool_calls and "parallel_tool_calls" in self.model_fields_set
        return Chat(
            [turn.model_dump(exclude_none=True) for turn in self.messages],
            options | self.chat_template_kwargs,
            [tool.as_json() for tool in self.usable_tools],
            "answer" if self.add_generation_prompt else end,
            forced=[tool.function.name for tool in self.forced_tools],
            several=asked and not isinstance(self.tool_choice, NamedTool),
            strict=[tool.function.name for tool in self.tools if tool.function.strict],
        )


class ChatRequest(Conversation, RequestBody):
    """Body of /v1/chat/completions."""

    max_completion_tokens: Whole | None = Field(None, ge=1)
    kept: bool = False
    """snapexport's: the answer says what its caches hold of the prompt."""
    logprobs: bool = False
    top_logprobs: Whole = Field(0, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_tokens and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens and max_completion_tokens are two names for one thing")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def top_logprobs_count(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


MOST_TOKENS = 1 << 20


class TokenizeRequest(Conversation):
    """Body of /tokenize: a prompt, or a chat's fields."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] = Field(default_factory=list)
    add_special_tokens: bool | None = None
    """None: for a prompt, not for a chat, whose template writes its special tokens."""
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("prompt or messages: give one of them")
        return self


class DetokenizeRequest(Strict):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int] = Field(max_length=MOST_TOKENS)
