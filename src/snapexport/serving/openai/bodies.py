"""The bodies of the two requests: which fields they have, of which type, within which limits.

Knows no tokenizer and no build. A field that is not here is `fields`'s.
"""

from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_core import from_json

from snapexport.serving.openai.contents import Message, Prompts, Stops, Strict
from snapexport.serving.openai.errors import ApiError, invalid
from snapexport.serving.openai.fields import without_idle

COMPLETION_TOKENS = 16
"""OpenAI's own default for a completion. A chat's is what is left of the model's positions."""


class StreamOptions(Strict):
    """What a stream is to tell beside its text."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Asked(Strict):
    """What both requests have in common: names and limits are OpenAI's, the last two vLLM's."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=16)
    stop: Stops = Field(default_factory=list)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    top_k: int = Field(0, ge=-1, lt=1 << 31)
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def tells_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def most_tokens(self) -> int | None:
        """None: as many as the model has positions for."""
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are told beside each chosen one; None: no logprobs at all."""
        return None


class ChatRequest(Asked):
    """Body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """vLLM's: values for the template, such as enable_thinking."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_tokens and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens and max_completion_tokens are two names for one thing")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(Asked):
    """Body of /v1/completions."""

    prompt: Prompts
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)

    @model_validator(mode="after")
    def _check_echo(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs needs the prompt's own, which are not kept")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens or COMPLETION_TOKENS

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


Body = TypeVar("Body", bound=Asked)


def parse(kind: type[Body], raw: bytes) -> Body:
    """A request's body, checked. Raises ApiError, which names the field."""
    try:
        # Unlike Python's own, it takes no NaN, and no halves of characters.
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    try:
        return kind.model_validate(without_idle(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _refused(first["loc"], first["type"], first["msg"]) from None


def _refused(loc: tuple[int | str, ...], kind: str, message: str) -> ApiError:
    where = ".".join(map(str, loc))
    said = message.removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return invalid(f"{where} is not supported: leave it out", where, "unsupported_parameter")
    return invalid(f"{where}: {said}" if where else said, where or said.split()[0])
