"""Offers a loaded build as `LLM(build).generate(prompts, params)`, in vLLM's manner.

Hands each caller its requests' deltas. Knows neither a step's work (loop.py) nor what a valid
prompt is (prompts.py). Not thread-safe.
"""

import importlib
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.method import MakeDrafter
from snapexport.runtime.prompt_store.keeper import PromptKeeper
from snapexport.runtime.requests import prompts as prompts_module
from snapexport.runtime.requests.config import LLMConfig
from snapexport.runtime.requests.generation_config import recommended_sampling
from snapexport.runtime.requests.loop import Loop
from snapexport.runtime.requests.parked_rows import ParkedRows
from snapexport.runtime.requests.prompts import (
    Continuations,
    Conversation,
    Params,
    Prompt,
    load_tokenizer,
)
from snapexport.runtime.requests.pulse import Pulse
from snapexport.runtime.requests.request import (
    Completion,
    OutputDelta,
    Request,
    SamplingParams,
    Score,
    require_name,
)

_DEFAULTS = LLMConfig()

_ON_DEMAND = {
    "chats": ("snapexport.runtime.chat.chat_prompts", "ChatPrompts"),
    "grammars": ("snapexport.runtime.requests.grammars.grammar", "Grammars"),
}
"""What only some requests need, and is imported when the first of them comes: module and class."""


class LLM:
    """A loaded build. Requests of `generate`, `stream` and `submit` share its batch slots."""

    _directory: Path | None = None
    """Where the chat template is; None for an executor of the caller's own."""

    def __init__(
        self, build_dir: Path | str, config: LLMConfig = _DEFAULTS, **changed: Any
    ) -> None:
        """Load a build: `LLM(build, threads=4)`. changed: fields of `LLMConfig`.

        Raises UserError.
        """
        config = replace(config, **changed)
        build = Build.open(build_dir)
        executor = config.open(build)
        kept = config.parked(build), config.keeper(build, executor)
        self._set_up(executor, load_tokenizer(build.directory), config, *kept)
        self._directory = build.directory

    @classmethod
    def from_executor(
        cls,
        executor: Executor,
        tokenizer: Tokenizer | None = None,
        max_num_batched_tokens: int | None = None,
        drafters: Sequence[MakeDrafter] | None = None,
    ) -> "LLM":
        """Return an LLM on an executor of the caller's own. Without a tokenizer it has no text.

        drafters: in place of those of the build's methods.
        """
        llm = cls.__new__(cls)
        config = LLMConfig(max_num_batched_tokens=max_num_batched_tokens)
        llm._set_up(executor, tokenizer, config, drafters=drafters)
        return llm

    def _set_up(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        config: LLMConfig,
        parked: ParkedRows | None = None,
        keeper: PromptKeeper | None = None,
        drafters: Sequence[MakeDrafter] | None = None,
    ) -> None:
        self.executor = executor
        self.tokenizer = tokenizer
        drafting = executor.drafters if drafters is None else drafters
        self._loop = Loop(
            executor,
            tokenizer,
            config.max_num_batched_tokens,
            [made for make in drafting if config.speculates and (made := make(executor.drafts))],
            parked,
            config.compress_every,
            keeper,
        )
        self._boxes: dict[int, deque[OutputDelta]] = {}
        self._outbox: deque[OutputDelta] = deque()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        continuations: Continuations = None,
        *,
        session: str = "",
        cache_salt: str = "",
    ) -> list[Completion]:
        """Complete every prompt: a text, token ids, or a list of either. The order is kept.

        continuations: for each prompt, text or token ids between it and the completion. They are
        fed through decode after the prompt was compressed, so that the vote can't consider them: as
        when a question arrives after its document. session: any name of a conversation; a prompt
        goes on from parked rows of the same session only. cache_salt: a prompt starts only from
        what prompts of the same salt have left, in any cache. Raises UserError for bad input,
        before anything is queued, and the executor's exception if it fails.
        """
        requests = self._read(prompts, params, continuations)
        requests = self._with_names(requests, session, cache_salt)
        return [Completion.of(*pair) for pair in zip(requests, self._run(requests), strict=True)]

    def score(
        self, prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt]
    ) -> list[Score]:
        """Return the log probabilities of each prompt's continuation, under the compressed cache.

        The first token's comes from prefill, which attends to everything. Raises like `generate`.
        """
        limits = self.executor.limits
        requests = prompts_module.read_scored(prompts, continuations, self.tokenizer, limits)
        return [Score.of(*pair) for pair in zip(requests, self._run(requests), strict=True)]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: Params = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        session: str = "",
        cache_salt: str = "",
    ) -> list[Completion]:
        """Answer one conversation, or each of a list, through the build's chat template.

        A message is {"role": "user", "content": "..."}. chat_template_kwargs: values for names that
        the template reads. tools: OpenAI's objects, which the template or the system message shows
        to the model; calls are text. An answer ends at the template's own end token too. session,
        cache_salt: as in `generate`. Raises UserError.
        """
        each = prompts_module.conversations(messages)
        how = prompts_module.params_for_each(self._or_usual(params), len(each))
        requests = [
            self.read_chat(
                one, own, chat_template_kwargs, tools=tools, session=session, cache_salt=cache_salt
            )
            for one, own in zip(each, how, strict=True)
        ]
        return [Completion.of(*pair) for pair in zip(requests, self._run(requests), strict=True)]

    def stream(
        self,
        prompt: Prompt | Request,
        params: SamplingParams | None = None,
        on_prefill: Callable[[int], None] | None = None,
    ) -> Generator[OutputDelta, None, None]:
        """Complete one prompt step by step. Closing the iterator cancels the request.

        on_prefill: called between the steps of prefill with the number of prompt tokens done. An
        exception of it cancels the request, and is raised.
        """
        request = prompt if isinstance(prompt, Request) else self.read(prompt, params)
        return self._follow([request], on_prefill)

    def read_chat(
        self,
        messages: Conversation,
        params: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        session: str = "",
        cache_salt: str = "",
    ) -> Request:
        """Check one conversation, for a later `submit` or `stream`. Raises like `chat`."""
        params = self._or_usual(params)
        request: Request = self._chats.request(
            messages, params, chat_template_kwargs, tools, parks=self.parks
        )
        (request,) = self._with_names([self.constrained(request)], session, cache_salt)
        return request

    def read(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        session: str = "",
        cache_salt: str = "",
    ) -> Request:
        """Check one prompt for a later `submit`. Any thread may call it: nothing is changed."""
        (request,) = self._with_names(self._read([prompt], params), session, cache_salt)
        return request

    def constrained(self, request: Request) -> Request:
        """The request with the grammar of its structured outputs, for a caller who changed them.

        Compiling may take seconds. Any thread may call it. Raises UserError.
        """
        outputs = request.params and request.params.structured_outputs
        grammar = self._grammars.compile(outputs) if outputs else None
        return replace(request, grammar=grammar) if grammar else request

    def open_grammars(self) -> None:
        """Prepare for structured outputs, before anything runs.

        It takes seconds in which no other thread runs. Raises UserError.
        """
        self._grammars.open()

    def submit(self, prompt: Prompt | Request, params: SamplingParams | None = None) -> int:
        """Queue one prompt for `step`; return the id that its deltas carry."""
        request = prompt if isinstance(prompt, Request) else self.read(prompt, params)
        return self._loop.submit(request)

    def step(self) -> list[OutputDelta]:
        """Advance all requests by one step; return the new deltas of submitted requests.

        An exception of the executor is not raised: it is on the last deltas of the requests that it
        ended.
        """
        self._step()
        deltas = list(self._outbox)
        self._outbox.clear()
        return deltas

    def cancel(self, request_id: int) -> None:
        """End a request and free its batch slot; its last delta's finish_reason is "cancelled".

        Nothing happens if it has ended.
        """
        if delta := self._loop.cancel(request_id):
            self._deliver(delta)

    def release(self, request_id: int) -> None:
        """Free the batch slot of a request that handed its row over: somebody has copied it."""
        self._loop.scheduler.finish(request_id)

    def close(self) -> None:
        """Wait until what is kept for later prompts is written, and free the executor's memory."""
        self._loop.close()
        self.executor.close()

    @property
    def busy(self) -> bool:
        """Whether a step would do anything, or has deltas to return."""
        return self._loop.scheduler.busy or bool(self._outbox)

    @property
    def pulse(self) -> Pulse:
        """The executor's signs of life. Any thread may read them."""
        return self._loop.pulse

    @property
    def parks(self) -> bool:
        """Whether rows of prompts are kept for later prompts."""
        return self._loop.parked is not None

    @property
    def prompt_cache_values(self) -> Mapping[str, int]:
        """Counts and bytes of the prompt cache on disk, by what they count; empty without one."""
        keeper = self._loop.keeper
        return keeper.values if keeper else {}

    @property
    def waiting(self) -> frozenset[int]:
        """Requests that have no batch slot yet."""
        return self._loop.scheduler.waiting

    def prefilled(self, request_id: int) -> int:
        """Prompt tokens of a request that are prefilled; 0 while it waits, or once it ended."""
        return self._loop.prefilled(request_id)

    @property
    def slots_used(self) -> int:
        """Batch slots in use, of `max_num_seqs`."""
        return self._loop.scheduler.slots_used

    @property
    def max_num_seqs(self) -> int:
        """Requests that can run at once: the batch slots of the build's graphs."""
        return self.executor.limits.batch

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a request without any: the checkpoint's. Raises UserError."""
        return self._usual

    @cached_property
    def _usual(self) -> SamplingParams:
        found: Any = {} if self._directory is None else recommended_sampling(self._directory)
        return SamplingParams(**found)

    def _or_usual(self, params: Any) -> Any:
        return self._usual if params is None else params

    @cached_property
    def _chats(self) -> Any:
        """The build's `ChatPrompts`. Raises UserError."""
        if self._directory is None:
            raise UserError("an LLM on an executor has no chat template", "use LLM(build_dir)")
        return _on_demand("chats").open(self._directory, self.tokenizer, self.executor.limits)

    @cached_property
    def _grammars(self) -> Any:
        """The tokenizer's `Grammars`."""
        return _on_demand("grammars")(self.tokenizer, self.executor.limits.vocab_size)

    def _read(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        continuations: Continuations = None,
    ) -> list[Request]:
        limits = self.executor.limits
        params = self._or_usual(params)
        requests = prompts_module.read(prompts, params, self.tokenizer, limits, continuations)
        return [self.constrained(request) for request in requests]

    def _with_names(
        self, requests: Sequence[Request], session: str, cache_salt: str
    ) -> list[Request]:
        if session and not self.parks:
            raise UserError(
                "a session needs parked rows", "open the LLM with parked_rows=1 or more"
            )
        session = require_name("session", session)
        cache_salt = require_name("cache_salt", cache_salt)
        return [replace(request, session=session, cache_salt=cache_salt) for request in requests]

    def _run(self, requests: Sequence[Request]) -> list[list[OutputDelta]]:
        """All deltas of each request, in the order of the requests."""
        parts: dict[int, list[OutputDelta]] = defaultdict(list)
        for delta in self._follow(requests):
            parts[delta.request_id].append(delta)
        return [parts[request_id] for request_id in sorted(parts)]

    def _follow(
        self, requests: Sequence[Request], on_prefill: Callable[[int], None] | None = None
    ) -> Generator[OutputDelta, None, None]:
        """Submit, step and yield deltas until the requests end, or the caller leaves.

        on_prefill: for a single request.
        """
        box: deque[OutputDelta] = deque()
        live: set[int] = set()
        try:
            for request in requests:
                live.add(request_id := self._loop.submit(request))
                self._boxes[request_id] = box
            while live:
                while not box:
                    self._step()
                    if on_prefill and not box:
                        on_prefill(self._loop.prefilled(request_id))
                delta = box.popleft()
                if delta.finish_reason:
                    live.remove(delta.request_id)
                    del self._boxes[delta.request_id]
                if delta.exception:
                    raise delta.exception
                yield delta
        finally:
            for request_id in live:
                self._loop.cancel(request_id)
                del self._boxes[request_id]

    def _step(self) -> None:
        for delta in self._loop.step():
            self._deliver(delta)

    def _deliver(self, delta: OutputDelta) -> None:
        self._boxes.get(delta.request_id, self._outbox).append(delta)


def _on_demand(name: str) -> Any:
    module, kind = _ON_DEMAND[name]
    return getattr(importlib.import_module(module), kind)
