"""The messages of a chat's body. Content is text alone, or text parts.

Knows no template.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from snapexport.serving.openai.errors import UNSUPPORTED
from snapexport.serving.openai.tools import ToolCall


def _joined(content: Any) -> Any:
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
        return PydanticCustomError(UNSUPPORTED, f"{what}: the model reads text alone")
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
    content: Annotated[str | None, BeforeValidator(_joined), WithJsonSchema(CONTENT)]
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
