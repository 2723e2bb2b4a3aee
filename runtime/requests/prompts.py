"""Turns prompts and parameters as callers pass them into checked requests.

All checks happen here, before anything is queued. Knows no scheduler and no executor.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.files.tokenizer_file import (
    COPY_AGAIN,
    TOKENIZER,
    parse_tokenizer,
    tokenizer_errors,
)
from snapexport.files.untrusted import TOKENIZER_BYTES, read_text
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.request import Request, SamplingParams

Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None
Continuations = Prompt | Sequence[Prompt] | None
Message = Mapping[str, Any]
"""A turn of a chat: its `role` and its `content`, both texts, and what else the template reads."""
Conversation = Sequence[Message]


BYTES_PER_TOKEN = 16
LEAST_BYTES = 1 << 16
"""Texts over max(LEAST_BYTES, longest prompt * BYTES_PER_TOKEN) bytes are refused untokenized."""


ANSWER_ROOM, STEP = 256, 1024
"""A proposed --L-max leaves room for an answer, and is a multiple of STEP."""


class PromptTooLongError(UserError):
    """A prompt of more tokens than the build, or the model itself, takes. limit: says which."""

    def __init__(self, tokens: int, limits: Limits) -> None:
        self.tokens, self.most = tokens, limits.longest_prompt
        self.limit, hint = f"the build takes {self.most:,}", "shorten it"
        ever = (limits.model_positions or tokens) - limits.after_prompt
        # Blocks go on to the model's own limit.
        if limits.prefill.longest != self.most or tokens > ever:
            ever = max(ever, self.most)
            others = f", this build {self.most:,}" if ever > self.most else ""
            self.limit = f"the model takes {ever:,} at the most{others}"
            hint = "shorten it: no build of this model takes more"
        else:
            L_max = -(-(tokens + limits.after_prompt + ANSWER_ROOM) // STEP) * STEP
            L_max = min(L_max, limits.model_positions or L_max)
            hint = f"shorten it, or build again with --L-max {L_max}"
        super().__init__(f"a prompt has {tokens:,} tokens, {self.limit}", hint)


class TextTooLongError(UserError):
    """A text of more bytes than are tokenized. most: tokens of the longest prompt."""

    def __init__(self, size: int, most_bytes: int, most: int) -> None:
        super().__init__(
            f"a prompt has {size} bytes, {most_bytes} are read at the most",
            f"shorten it: {most:,} tokens can be taken",
        )
        self.most = most


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """Return the build's tokenizer, if it has one, with truncation and padding off."""
    path = directory / TOKENIZER
    if not os.path.lexists(path):
        return None
    return parse_tokenizer(read_text(path, TOKENIZER_BYTES, COPY_AGAIN, links=False), path)


def read(
    prompts: Prompt | Sequence[Prompt],
    params: Params,
    tokenizer: Tokenizer | None,
    limits: Limits,
    continuations: Continuations = None,
) -> list[Request]:
    """Return one request for each prompt, in order. Raises UserError."""
    each = _one_or_many(prompts)
    how = params_for_each(params, len(each))
    for one in how:
        require_usable(one, tokenizer, limits)
    requests = [
        Request(_token_ids(prompt, tokenizer, limits), one)
        for prompt, one in zip(each, how, strict=True)
    ]
    if continuations is None:
        return requests
    return _with_continuations(requests, continuations, tokenizer, limits)


def require_readable(prompt: Prompt, limits: Limits, longest: int | None = None) -> None:
    """Raise TextTooLongError for a text that is far too long, without tokenizing it.

    A tokenizer would spend seconds and gigabytes on it. longest: tokens that are taken; None: those
    of the longest prompt.
    """
    if not isinstance(prompt, str):
        return
    tokens = limits.longest_prompt if longest is None else longest
    most = max(LEAST_BYTES, tokens * BYTES_PER_TOKEN)
    if (size := len(prompt.encode(errors="surrogatepass"))) > most:
        raise TextTooLongError(size, most, tokens)


def read_scored(
    prompts: Prompt | Sequence[Prompt],
    continuations: Prompt | Sequence[Prompt],
    tokenizer: Tokenizer | None,
    limits: Limits,
) -> list[Request]:
    """Return requests whose continuations are scored, with nothing sampled. Raises UserError."""
    requests = read(prompts, None, tokenizer, limits, continuations)
    return [replace(request, params=None) for request in requests]


def _with_continuations(
    requests: list[Request],
    continuations: Prompt | Sequence[Prompt],
    tokenizer: Tokenizer | None,
    limits: Limits,
) -> list[Request]:
    each = _one_or_many(continuations)
    if len(each) != len(requests):
        raise UserError(
            f"{len(each)} continuations for {len(requests)} prompts", "give one for each prompt"
        )
    return [
        replace(request, continuation=_continuation(request, text, tokenizer, limits))
        for request, text in zip(requests, each, strict=True)
    ]


def _continuation(
    request: Request, text: Prompt, tokenizer: Tokenizer | None, limits: Limits
) -> tuple[int, ...]:
    """The continuation's tokens, without those that a tokenizer puts before a text."""
    require_readable(text, limits, limits.positions)
    ids = encode(text, tokenizer, False) if isinstance(text, str) else list(_iterable(text))
    if not ids:
        raise UserError("a continuation is empty", "give it one token or more")
    together = len(request.prompt_token_ids) + len(ids)
    if together > limits.positions:
        raise UserError(
            f"a prompt and its continuation have {together} tokens, "
            f"the build has {limits.positions} positions",
            "shorten them",
        )
    return tuple(_known_token(token, limits.vocab_size) for token in ids)


def _one_or_many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A text is one prompt, and so is a list of integers."""
    if isinstance(prompts, str):
        return [prompts]
    each = list(_iterable(prompts))
    if each and all(isinstance(item, Integral) for item in each):
        return [each]
    return each


def conversations(messages: Conversation | Sequence[Conversation]) -> Sequence[Conversation]:
    """Each of a list of conversations, or a single one."""
    is_list = isinstance(messages, list | tuple) and bool(messages)
    return [messages] if is_list and isinstance(messages[0], Mapping) else messages  # type: ignore[list-item,return-value]


def params_for_each(params: Params, count: int) -> Sequence[SamplingParams]:
    """One for each of `count` prompts. Raises UserError."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise UserError(
            f"{len(params)} sampling parameters for {count} prompts",
            "give one SamplingParams, or one for each prompt",
        )
    return params


def require_usable(params: SamplingParams, tokenizer: Tokenizer | None, limits: Limits) -> None:
    """Raise UserError for parameters that the build can't follow."""
    if not isinstance(params, SamplingParams):
        raise UserError(f"{params!r} is not a SamplingParams", "make one: SamplingParams(...)")
    if params.stop and tokenizer is None:
        raise _no_tokenizer("a stop string was given")
    for token in params.logit_bias or ():
        _known_token(token, limits.vocab_size)


def _token_ids(prompt: Prompt, tokenizer: Tokenizer | None, limits: Limits) -> tuple[int, ...]:
    require_readable(prompt, limits)
    ids = encode(prompt, tokenizer) if isinstance(prompt, str) else list(_iterable(prompt))
    if not ids:
        raise UserError("a prompt is empty", "give it one token or more")
    if len(ids) > limits.longest_prompt:
        raise PromptTooLongError(len(ids), limits)
    return tuple(_known_token(token, limits.vocab_size) for token in ids)


def encode(text: str, tokenizer: Tokenizer | None, is_start: bool = True) -> list[int]:
    """Token ids of a text; is_start: with those that the tokenizer puts before and after a text.

    Raises UserError.
    """
    if tokenizer is None:
        raise _no_tokenizer("a prompt is text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"a prompt is not valid text: {error}", "pass valid Unicode") from None
    if not text:
        return []  # it could become a lone BOS
    # `encode` holds the interpreter's lock for seconds a megabyte; `encode_batch` releases it.
    with tokenizer_errors("the tokenizer cannot encode a prompt"):
        (encoding,) = tokenizer.encode_batch([text], add_special_tokens=is_start)
    ids: list[int] = encoding.ids
    return ids


def _known_token(token: object, vocab_size: int) -> int:
    if not isinstance(token, Integral) or not 0 <= int(token) < vocab_size:
        raise UserError(
            f"{token!r} is not a token of the model",
            f"token ids are whole numbers from 0 to {vocab_size - 1}",
        )
    return int(token)


def _iterable(value: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise UserError(f"{value!r} is not a prompt", "give a text, a list of token ids, or a list")
    return value


def _no_tokenizer(why: str) -> UserError:
    return UserError(
        f"{why}, and the build has no tokenizer.json",
        "copy tokenizer.json from the checkpoint into the build, or pass token ids from Python",
    )
