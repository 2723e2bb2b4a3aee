"""One loaded build that serves requests: what every server does with it, done once.

    read     a prompt to a `Request`, in any thread, with a bound on the text
    streams  requests to outputs, in an event loop
    metrics  gauges, counters and histograms
    text_of  a token's text and bytes, for log probabilities

Knows neither HTTP, Triton nor Dynamo.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from snapexport.contract.manifest import MANIFEST, Manifest, no_build
from snapexport.errors import UserError
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.chat.parsers.table import OutputFormat
from snapexport.runtime.chat.template_habits import Template, sources
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.runtime.requests.config import LLMConfig
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import Prompt, require_readable
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.serving.memory.process import resident_bytes
from snapexport.serving.metrics import (
    MEMORY,
    PROMPT_CACHE,
    Metric,
    Observe,
    TextForm,
    constant_gauges,
)
from snapexport.serving.options import ModelOptions
from snapexport.serving.streams import Streams

LEAST = -9999.0
"""OpenAI's value for the log probability of a token that is impossible."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")

MOST_KEPT = 1 << 14
"""Tokens whose text is kept."""


class TokenText:
    """Texts and bytes of a tokenizer's tokens; without a tokenizer they are empty.

    A token may be a part of a character. Its text is then a replacement character, and its bytes
    are those that the vocabulary spells: by a letter for each byte (GPT-2, Llama 3, Qwen), or as
    `<0xE2>` (SentencePiece).
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._text = lru_cache(maxsize=MOST_KEPT)(self._decode)

    def __call__(self, token: int) -> str:
        """The token's text."""
        return self._text(token)

    def data(self, token: int) -> bytes:
        """The token's bytes. Those of an answer join to its text."""
        text = self._text(token)
        if self._tokenizer is None or REPLACEMENT not in text:
            return text.encode()
        name = self._tokenizer.id_to_token(token) or ""
        if byte := _FALLBACK.fullmatch(name):
            return bytes.fromhex(byte[1])
        letters = self._bytes_of_letters
        return (
            bytes(map(letters.__getitem__, name)) if letters.keys() >= set(name) else text.encode()
        )

    def is_part(self, token: int) -> bool:
        """Whether the token is only a part of a character."""
        return self.data(token) != self._text(token).encode()

    def _decode(self, token: int) -> str:
        """The token is decoded after another one: some decoders drop a first leading space."""
        if self._tokenizer is None:
            return ""
        once = self._tokenizer.decode([token], skip_special_tokens=False)
        twice = self._tokenizer.decode([token, token], skip_special_tokens=False)
        return str(twice.removeprefix(once))

    @cached_property
    def _bytes_of_letters(self) -> dict[str, int]:
        """Latin-1's printable letters stand for themselves, those above for other bytes."""
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        own = {letter: ord(letter) for letter in letters if ord(letter) < 256}
        others = sorted(set(range(256)) - set(own.values()))
        above = [letter for letter in letters if ord(letter) >= 256]
        return own | dict(zip(above, others, strict=True))


class Model:
    """An LLM with its worker, its tokenizer's texts and its metrics."""

    def __init__(
        self,
        name: str,
        llm: LLM,
        *,
        log: Callable[[str], None],
        template: Template | None = None,
        output_format: OutputFormat | None = None,
        gauges: Mapping[str, float] | None = None,
        observe: Observe | None = None,
        max_pending: int = 64,
        request_seconds: float = 0.0,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """log: takes tracebacks. template: of chats; None refuses them. output_format: of answers
        in chats; None: by the template's text. observe: in place of the histograms of `metrics`.
        max_pending: requests that may wait for a batch slot. request_seconds: the timeout of a
        request; 0: none. defaults: fields of SamplingParams for requests that do not name them.
        """
        self.name, self.llm = name, llm
        self.defaults = defaults or {}
        self.most_answers = llm.executor.limits.batch + max_pending
        """Answers that can run and wait at once."""
        self.chat: ChatPrompts | None = None
        """Turns conversations into prompts; None for a build without a chat template."""
        if template:
            known = output_format or OutputFormat.of(sources(template))
            self.chat = ChatPrompts(llm.tokenizer, template, llm.executor.limits, known)
        self._gauges = gauges or {}
        self.admits: Callable[[], bool] = lambda: True
        """Whether there is memory for one more request."""
        self._text_form = TextForm()
        self.memory_bound: int | None = None
        """Most resident bytes of the process; None: it has no bound."""
        self.streams = Streams(
            llm,
            max_pending=max_pending,
            log=log,
            observe=observe or self._text_form.observe,
            request_seconds=request_seconds,
        )

    @classmethod
    def load(
        cls,
        options: ModelOptions,
        log: Callable[[str], None],
        *,
        backend: BackendName | None = None,
        **given: Any,
    ) -> "Model":
        """Load a build, by the options that `LLMConfig` has too. given: further arguments of Model.

        backend: where the options have none. Raises UserError.
        """
        names = {field.name for field in fields(LLMConfig)}
        running = {name: value for name, value in vars(options).items() if name in names}
        llm = LLM(options.build, **{"backend": backend} | running)
        with suppress(UserError):  # a request that has a form gets the error
            llm.open_grammars()
        given |= {"gauges": constant_gauges(Manifest.read(options.build)), "log": log}
        return cls(options.model_name, llm, max_pending=options.max_pending, **given)

    @property
    def limits(self) -> Limits:
        return self.llm.executor.limits

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.llm.tokenizer

    @cached_property
    def text_of(self) -> TokenText:
        """The text and the bytes of a token."""
        return TokenText(self.tokenizer)

    def read(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Check a prompt. Refuses a text that is far too long before it is tokenized.

        Raises UserError.
        """
        require_readable(prompt, self.limits)
        return self.llm.read(prompt, params)

    def values(self) -> dict[str, float]:
        """All gauges and counters by their metrics' names. Any thread may call this."""
        kept = self.llm.prompt_cache_values.items()
        of_disk = {PROMPT_CACHE[name].name: value for name, value in kept}
        return {**self._gauges, **self.streams.worker.values(), **of_disk, **self._memory()}

    def _memory(self) -> dict[str, float]:
        if self.memory_bound is None:
            return {}
        with suppress(OSError):  # no /proc
            return {"memory_bound_bytes": self.memory_bound, "resident_bytes": resident_bytes()}
        return {}

    def metrics(
        self,
        labels: Mapping[str, str],
        further: Iterable[Metric] = (),
        values: Mapping[str, float] | None = None,
    ) -> str:
        """All metrics in Prometheus' text form. further: a server's own, with their `values`."""
        known = {**self.values(), **(values or {})}
        return self._text_form.write(known, labels, (*PROMPT_CACHE.values(), *MEMORY, *further))


def has_tokenizer(options: ModelOptions) -> bool:
    """Look for the build's tokenizer. Raises UserError for no build, before weights are loaded."""
    if not os.path.lexists(options.build / MANIFEST):
        raise no_build(options.build)
    return os.path.lexists(options.build / TOKENIZER)


def require_tokenizer(options: ModelOptions) -> None:
    """Raise UserError for no build, or one without a tokenizer."""
    if not has_tokenizer(options):
        raise UserError(f"{options.build} has no {TOKENIZER}", "copy it from the checkpoint")


def warm_up(llm: LLM) -> None:
    """Run every graph once, before the first request. The prompts are too short to be kept."""
    run_every_decode(llm)
    limits = llm.executor.limits
    prompts = [[0] * min(limits.prefill_chunk, limits.longest_prompt), [0]]
    llm.generate(prompts, SamplingParams(max_tokens=2, ignore_eos=True))


def touch_caches(llm: LLM) -> None:
    """Write all caches once, so that their memory is taken before the first request."""
    for slot in range(llm.executor.limits.batch):
        llm.executor.clear(slot)
    if llm.executor.prompt_cache:
        llm.executor.prompt_cache.clear()


def run_every_decode(llm: LLM) -> None:
    """Run a step of idle batch slots on each graph of decode. Overwrites all batch slots."""
    limits = llm.executor.limits
    for count in limits.decode_batches:
        idle = np.zeros(count, np.int64)
        llm.executor.decode(idle, idle, idle)
        if limits.step_tokens > 1:
            several = np.zeros((count, limits.step_tokens), np.int64)
            llm.executor.decode(several, idle, idle)
