"""The fields of all requests that generate, and the body of a completion: types and limits.

Knows no tokenizer and no build.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    FiniteFloat,
    WithJsonSchema,
    model_validator,
)

from snapexport.errors import UserError
from snapexport.runtime.requests.request import (
    MAX_LOGPROBS,
    MAX_SESSION_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
)
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from snapexport.serving.openai.bodies.parsing import Strict

Schema = dict[str, Any] | str
"""An object, or its text."""


class JsonSchema(Strict):
    """`response_format.json_schema`. Not strict: what can't be enforced of it is ignored."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class _Text(Strict):
    type: Literal["text"]

    def form(self) -> StructuredOutputs | None:
        return None


class _JsonObject(Strict):
    type: Literal["json_object"]

    def form(self) -> StructuredOutputs | None:
        return StructuredOutputs(json_object=True)


class _JsonSchema(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema

    def form(self) -> StructuredOutputs | None:
        schema = self.json_schema
        return StructuredOutputs(json=schema.schema_, lenient=not schema.strict)


ResponseFormat = Annotated[_Text | _JsonObject | _JsonSchema, Field(discriminator="type")]


class Form(Strict):
    """`structured_outputs`."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    disable_fallback: bool = False
    disable_any_whitespace: Literal[False] = False
    disable_additional_properties: Literal[False] = False

    def form(self) -> StructuredOutputs:
        """Raises UserError unless there is one of them."""
        return StructuredOutputs(
            json=self.json_,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=self.json_object,
        )


class FormFields(Strict):
    """One of these at the most. The guided_ ones are vLLM's older names."""

    response_format: ResponseFormat | None = None
    structured_outputs: Form | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @property
    def form_field(self) -> str:
        """The fields that are given, for errors."""
        given = [name for name in FormFields.model_fields if getattr(self, name) is not None]
        return " and ".join(given)

    def form(self) -> StructuredOutputs | None:
        """The form of the answer; None where it is free. Raises UserError."""
        guided = Form(
            json=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        asked: list[_Text | _JsonObject | _JsonSchema | Form] = [
            one for one in (self.response_format, self.structured_outputs) if one is not None
        ]
        if guided != Form():
            asked.append(guided)
        forms = list({one for each in asked if (one := each.form())})
        if len(forms) > 1:
            raise UserError(f"{self.form_field} prescribe two forms", "give one of them")
        return forms[0] if forms else None


COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of a completion. A chat may use all positions that are left."""


def _whole(value: Any) -> Any:
    """JSON of some languages writes whole numbers as 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


SEED = {"type": "integer", "minimum": -1, "exclusiveMaximum": 1 << 63}


def _seed(value: Any) -> Any:
    """A seed of -1 asks for none, as in vLLM."""
    return None if (whole := _whole(value)) == -1 and not isinstance(whole, bool) else whole


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
    cache_salt: str | None = Field(None, max_length=MAX_SESSION_CHARACTERS)
    """vLLM's: nothing is used that prompts of another salt have left in a cache."""

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
