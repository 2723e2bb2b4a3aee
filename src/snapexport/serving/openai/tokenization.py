"""Tokens of a text or a chat, and the text of tokens: vLLM's /tokenize and /detokenize."""

from typing import Any, Self

from pydantic import Field, model_validator

from snapexport.runtime.requests.prompts import encode, require_readable
from snapexport.serving.model import Model
from snapexport.serving.openai.chat_messages import Message
from snapexport.serving.openai.errors import client_errors, invalid
from snapexport.serving.openai.messages_body import Prompt
from snapexport.serving.openai.preprocess import rendered
from snapexport.serving.openai.protocol import Conversation
from snapexport.serving.openai.responses_body import ResponsesRequest
from snapexport.serving.openai.strict import Strict

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


def tokenize(model: Model, body: TokenizeRequest) -> dict[str, Any]:
    """The answer of /tokenize. Raises ApiError."""
    is_chat = body.prompt is None
    text = rendered(model, body) if body.prompt is None else body.prompt
    special = (not is_chat) if body.add_special_tokens is None else body.add_special_tokens
    with client_errors("messages" if is_chat else "prompt"):
        require_readable(text, model.limits)
        ids = encode(text, model.tokenizer, special)
    names = [model.tokenizer.id_to_token(token) for token in ids] if model.tokenizer else None
    return {
        "count": len(ids),
        "max_model_len": model.limits.longest_prompt,
        "tokens": ids,
        "token_strs": names if body.return_token_strs else None,
    }


def detokenize(model: Model, body: DetokenizeRequest) -> dict[str, Any]:
    """The answer of /detokenize. Raises ApiError."""
    most = model.limits.vocab_size
    if wrong := [token for token in body.tokens if not 0 <= token < most]:
        raise invalid(f"{wrong[0]} is not a token of the model", "tokens")
    assert model.tokenizer, "it is not served without one"
    return {"prompt": model.tokenizer.decode(body.tokens, skip_special_tokens=False)}


def count_tokens(model: Model, body: Prompt | ResponsesRequest) -> dict[str, Any]:
    """The answer of /v1/messages/count_tokens. Raises ApiError."""
    text = rendered(model, body.as_chat())
    with client_errors("messages"):
        return {"input_tokens": len(model.encode(text))}


def count_input(model: Model, body: ResponsesRequest) -> dict[str, Any]:
    """The answer of /v1/responses/input_tokens. Raises ApiError."""
    return {"object": "response.input_tokens", **count_tokens(model, body)}
