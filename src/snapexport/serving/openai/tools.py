"""Tools in the bodies of requests: their definitions, the choice among them, and calls in history.

Knows no template and no parser.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from snapexport.serving.openai.strict import Loose

MOST_TOOLS = 128
"""OpenAI's limit."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class Function(BaseModel):
    """What the model may call. Further keys go to the template as they are."""

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


def named(choice: ToolChoice) -> set[str]:
    """The tools that a choice names."""
    if isinstance(choice, AllowedTools):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return {choice.function.name} if isinstance(choice, NamedTool) else set()


def usable(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that the model is shown."""
    if isinstance(choice, AllowedTools):
        return [tool for tool in tools if tool.function.name in named(choice)]
    return [] if choice == "none" else list(tools)


def forced(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools of which an answer must call one."""
    if isinstance(choice, NamedTool):
        return [tool for tool in tools if tool.function.name in named(choice)]
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedTools) else choice
    return usable(tools, choice) if mode == "required" else []


def schemas(tools: Iterable[Tool]) -> dict[str, Mapping[str, Any]]:
    """The schema of the parameters of each."""
    return {tool.function.name: tool.function.parameters or {} for tool in tools}


def strict_names(tools: Iterable[Tool]) -> list[str]:
    """The names of those whose parameters must be enforced."""
    return [tool.function.name for tool in tools if tool.function.strict]
