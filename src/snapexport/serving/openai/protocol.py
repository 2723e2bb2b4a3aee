"""The bodies of the API's requests: fields, types and limits.

Unsupported fields are refused by name unless their value has no effect: silently dropping one would
change the answer. Knows no tokenizer and no build.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from snapexport.runtime.requests.request import (
    MAX_SESSION_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
)
from snapexport.serving.openai.errors import ApiError, invalid

COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of a completion. A chat may use all positions that are left."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    # Of other servers' own:
    "add_generation_prompt": (True,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Values of unsupported fields that have no effect. Clients send them by default."""

LABELS = ("safety_identifier", "user")
"""Fields that identify the user: any value is taken, without effect."""


class Strict(BaseModel):
    """Refuses unknown fields, and texts in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _joined(content: Any) -> Any:
    """A list of text parts as one text, each part on lines of its own."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not _is_text_part(part):
            raise ValueError(_why_no_text(part))
    return "\n".join(part["text"] for part in content)


def _is_text_part(part: Any) -> bool:
    if not isinstance(part, dict) or part.keys() != {"type", "text"}:
        return False
    return part["type"] == "text" and isinstance(part["text"], str)


def _why_no_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind != "text":
        return (
            f"a part of content of type '{kind:.40}' is not supported: the model reads text alone"
        )
    return 'a part of content must be {"type": "text", "text": "..."}'


class Message(Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)]

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
        """Drop empty fields, which messages of this server have when a client sends them back."""
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None and one != []}


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[
    list[Stop],
    Field(max_length=MAX_STOPS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
"""Texts; a single one needs no list."""


def _by_token(value: Any) -> Any:
    """JSON's names are texts."""
    if not isinstance(value, dict):
        return value
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in value):
        raise ValueError("its names must be token ids")
    return {int(name): bias for name, bias in value.items()}


MOST_PROMPTS = 1024
"""Prompts of one body before they are counted against the room for answers."""


def _prompts(value: Any) -> Any:
    if isinstance(value, str) or _are_ids(value):
        return [value]
    if isinstance(value, list) and len(value) > MOST_PROMPTS:
        raise ValueError(f"give at most {MOST_PROMPTS} prompts")
    if isinstance(value, list) and value and all(isinstance(p, str) or _are_ids(p) for p in value):
        return value
    raise ValueError("give a text, a list of texts, token ids, or a list of lists of token ids")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


Prompts = Annotated[list[str | list[int]], BeforeValidator(_prompts)]
"""A list of prompts, each a text or token ids; a single one needs no list."""


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class RequestBody(Strict):
    """Fields of both requests. Names and limits are OpenAI's, or vLLM's where OpenAI has none."""

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
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0)
    min_p: float = Field(0.0, ge=0, le=1)
    logit_bias: Annotated[dict[int, float], BeforeValidator(_by_token)] = Field(
        default_factory=dict
    )
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, max_length=MAX_STOPS
    )
    min_tokens: int = Field(0, ge=0)
    prompt_cache_key: str | None = Field(None, max_length=MAX_SESSION_CHARACTERS)
    """The session: parked rows of requests with another key are not used."""

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def token_limit(self) -> int | None:
        """None: up to the model's last position."""
        return self.max_tokens

    @property
    def top_logprobs_count(self) -> int | None:
        """Number of top tokens beside each chosen one; None: no logprobs."""
        return None


class ChatRequest(RequestBody):
    """Body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """vLLM's: values for names that the template reads, such as `enable_thinking`."""

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


class CompletionRequest(RequestBody):
    """Body of /v1/completions."""

    prompt: Prompts
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)

    @model_validator(mode="after")
    def _check_echo(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise ValueError(
                "echo with logprobs is not supported: the prompt's log probabilities are not kept"
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens or COMPLETION_TOKENS

    @property
    def top_logprobs_count(self) -> int | None:
        return self.logprobs


Body = TypeVar("Body", bound=RequestBody)


def parse(kind: type[Body], raw: bytes) -> Body:
    """Read and check a body. Raises ApiError, which names the field."""
    try:
        # Unlike the json module it refuses NaN and lone surrogates.
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    try:
        return kind.model_validate(_without_neutral(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _refused(first["loc"], first["type"], first["msg"]) from None


def _refused(loc: tuple[int | str, ...], kind: str, message: str) -> ApiError:
    where = ".".join(map(str, loc))
    problem = message.removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return invalid(f"{where} is not supported: leave it out", where, "unsupported_parameter")
    return invalid(f"{where}: {problem}" if where else problem, where or problem.split()[0])


def _without_neutral(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have an effect; null counts as absent. Raises ApiError."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            allowed = " or ".join(map(repr, NEUTRAL[name]))
            message = f"{name} is not supported: leave it out (or send {allowed})"
            raise invalid(message, name, "unsupported_parameter")
    return {name: value for name, value in given.items() if name not in (*NEUTRAL, *LABELS)}
