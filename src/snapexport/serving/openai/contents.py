"""What a body may give in several forms, in one: messages, prompts and stop texts."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from snapexport.runtime.requests import MAX_STOP_CHARACTERS


class Strict(BaseModel):
    """No unknown field, and no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _joined(content: Any) -> Any:
    """A list of text parts as one text, each part on lines of its own."""
    if not isinstance(content, list):
        return content
    if not all(map(_is_text_part, content)):
        raise ValueError('a part of content must be {"type": "text", "text": "..."}')
    return "\n".join(part["text"] for part in content)


def _is_text_part(part: Any) -> bool:
    if not isinstance(part, dict) or part.keys() != {"type", "text"}:
        return False
    return part["type"] == "text" and isinstance(part["text"], str)


class Message(Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)]

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
        """An answer of ours that is sent back has fields of which nothing is said."""
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None and one != []}


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[Stop], Field(max_length=4), BeforeValidator(_stops)]
"""Up to four texts; one may come without a list."""


def _prompts(value: Any) -> Any:
    if isinstance(value, str) or _are_ids(value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(p, str) or _are_ids(p) for p in value):
        return value
    raise ValueError("give a text, a list of texts, token ids, or a list of lists of token ids")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


Prompts = Annotated[list[str | list[int]], BeforeValidator(_prompts)]
"""Texts and lists of token ids; one may come without a list."""
