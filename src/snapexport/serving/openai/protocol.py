"""The bodies of the API's requests: fields, types and limits.

Unsupported fields are refused by name unless they can't change the answer. Knows no tokenizer and
no build.
"""

import codecs
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    FiniteFloat,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import from_json

from snapexport.runtime.requests.request import (
    MAX_LOGPROBS,
    MAX_SESSION_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
)
from snapexport.serving.openai.chat_messages import Message
from snapexport.serving.openai.errors import invalid
from snapexport.serving.openai.form_fields import FormFields
from snapexport.serving.openai.refusals import Refusals
from snapexport.serving.openai.strict import Strict
from snapexport.serving.openai.tools import (
    MOST_TOOLS,
    Tool,
    ToolChoice,
    forced,
    named,
    usable,
)

COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of a completion. A chat may use all positions that are left."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": ({},),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "suffix": ("",),
    # Of other servers' own:
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "detokenize": (True,),
    "echo": (False,),
    "include_reasoning": (True,),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "return_token_ids": (False,),
    "vllm_xargs": ({},),
    "bad_words": ([],),
    "documents": ([],),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Values of unsupported fields that have no effect. Clients send them by default."""

IGNORED = frozenset(
    "cache_prompt cache_salt guided_decoding_backend inference_geo max_tool_calls metadata "
    "prediction priority prompt_cache_options prompt_cache_retention request_id safety_identifier "
    "service_tier store user user_profile_id verbosity workspace_id".split()
)
"""Fields that can't change the answer: any value is taken, without effect."""


def _whole(value: Any) -> Any:
    """JSON of some languages writes whole numbers as 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


SEED = {"type": "integer", "minimum": -1, "exclusiveMaximum": 1 << 63}


def _seed(value: Any) -> Any:
    """A seed of -1 asks for none, as in vLLM."""
    return None if (whole := _whole(value)) == -1 and not isinstance(whole, bool) else whole


OLDER = {"function_call": "tool_choice", "functions": "tools"}
"""OpenAI's older names, and what to use."""

STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[
    list[Stop],
    Field(max_length=MAX_STOPS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [STOP, {"type": "array", "items": STOP, "maxItems": MAX_STOPS}]}),
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


_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_TEXTS_OR_IDS = {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1}
PROMPTS = {"anyOf": [{"type": "string"}, _IDS, _TEXTS_OR_IDS]}

Prompts = Annotated[list[str | list[int]], BeforeValidator(_prompts), WithJsonSchema(PROMPTS)]
"""A list of prompts, each a text or token ids; a single one needs no list."""


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """OpenAI's: padding, which is not added."""
    continuous_usage_stats: bool = False
    """vLLM's: every chunk has the usage so far."""


class RequestBody(FormFields):
    """Fields of both requests. Names and limits are OpenAI's, or vLLM's where OpenAI has none."""

    default_tokens: ClassVar[int | None] = None
    """Tokens of an answer where nobody names a limit. None: up to the model's last position."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Whole = Field(1, ge=1, le=16)
    stop: Stops = Field(default_factory=list)
    max_tokens: Whole | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: Annotated[int | None, BeforeValidator(_seed), WithJsonSchema(SEED)] = Field(
        None, ge=0, lt=1 << 63
    )
    top_k: Whole = Field(0, ge=-1, lt=1 << 31)
    ignore_eos: bool = False
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=1e-3, le=1e3)
    min_p: float = Field(0.0, ge=0, le=1)
    logit_bias: Annotated[dict[int, FiniteFloat], BeforeValidator(_by_token)] = Field(
        default_factory=dict
    )
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, max_length=MAX_STOPS
    )
    min_tokens: Whole = Field(0, ge=0)
    skip_special_tokens: bool = True
    prompt_cache_key: str | None = Field(None, max_length=MAX_SESSION_CHARACTERS)
    """The session: parked rows of requests with another key are not used."""

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_on(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def token_limit(self) -> int | None:
        """The request's own."""
        return self.max_tokens

    @property
    def top_logprobs_count(self) -> int | None:
        """Number of top tokens beside each chosen one; None: no logprobs."""
        return None


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
            raise ValueError("tools have two functions of one name")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice required needs tools")
        if not named(self.tool_choice) <= set(names):
            raise ValueError("tool_choice names a function that tools do not have")
        return self

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools that the model is shown: none if it must not call any."""
        return usable(self.tools, self.tool_choice)

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which the answer must call one; none if it may be a text."""
        return forced(self.tools, self.tool_choice)

    @property
    def template_options(self) -> dict[str, Any]:
        """Values for names that the template may read."""
        effort = self.reasoning_effort
        return ({} if effort is None else {"reasoning_effort": effort}) | self.chat_template_kwargs


class ChatRequest(Conversation, RequestBody):
    """Body of /v1/chat/completions."""

    max_completion_tokens: Whole | None = Field(None, ge=1)
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


class CompletionRequest(RequestBody):
    """Body of /v1/completions."""

    default_tokens: ClassVar[int | None] = COMPLETION_TOKENS
    prompt: Prompts
    echo: bool = False
    logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)

    max_tokens: Whole | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _check_scoring(self) -> Self:
        if self.max_tokens == 0 and not self.scores_prompt:
            raise ValueError("max_tokens 0 needs echo: true and logprobs")
        return self

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's tokens have log probabilities too."""
        return self.echo and self.logprobs is not None

    @property
    def top_logprobs_count(self) -> int | None:
        return self.logprobs


Body = TypeVar("Body", bound=BaseModel)

GZIP = b"\x1f\x8b"


def parse(kind: type[Body], raw: bytes) -> Body:
    """Read and check a body. Raises ApiError, which names the field."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.startswith(GZIP):
        raise invalid("the body is gzip, not JSON: send it uncompressed")
    try:
        # Unlike the json module it refuses NaN and lone surrogates.
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object")
    return checked(kind, value)


def checked(kind: type[Body], value: Mapping[str, Any]) -> Body:
    """A body of these fields. Raises ApiError, which names what is wrong."""
    own = kind.model_fields.keys()
    refusals = Refusals(own)
    ignored = IGNORED - own
    given = {name: one for name, one in value.items() if one is not None and name not in ignored}
    for name in (given.keys() & NEUTRAL.keys()) - own:
        if given.pop(name) not in NEUTRAL[name]:
            refusals.add_unsupported(name, NEUTRAL[name], OLDER.get(name, ""))
    try:
        body = kind.model_validate(given)
    except ValidationError as error:
        refusals.add_errors(error, given)
        raise refusals.as_error() from None
    if refusals:
        raise refusals.as_error()
    return body
