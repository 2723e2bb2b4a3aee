"""The front door: `LLM(build_dir).generate(prompts, params)`, in vLLM's manner.

Responsible for who gets which delta. What happens in a step is `loop`'s, what is a valid prompt
`prompts`'s. Not thread-safe.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from snapexport.contract.build_directory import Build
from snapexport.runtime import prompts as prompts_module
from snapexport.runtime.executor import Executor
from snapexport.runtime.loop import Loop
from snapexport.runtime.open_executor import BackendName, open_executor
from snapexport.runtime.prompts import Continuations, Params, Prompt, load_tokenizer
from snapexport.runtime.requests import Completion, OutputDelta, Request, SamplingParams, Score


class LLM:
    """A build, loaded. Requests of `generate`, `stream` and `submit` share its slots."""

    def __init__(
        self,
        build_dir: Path | str,
        *,
        baseline: bool = False,
        threads: int | None = None,
        prepack: bool = False,
        token_budget: int | None = None,
        backend: BackendName | None = None,
    ) -> None:
        """Load a build. Raises UserError.

        backend: None takes TensorRT where the build has engines, else ONNX Runtime.
        baseline: run its uncompressed graphs. prepack: a second copy of the weights, laid out for
        faster decoding of up to 7 slots or more than 32. token_budget: tokens of one step, prefill
        and decode.
        """
        build = Build.open(build_dir)
        executor = open_executor(
            build, backend=backend, baseline=baseline, threads=threads, prepack=prepack
        )
        self._set_up(executor, load_tokenizer(build.directory), token_budget)

    @classmethod
    def from_executor(
        cls, executor: Executor, tokenizer: Tokenizer | None = None, token_budget: int | None = None
    ) -> "LLM":
        """An LLM on an executor of the caller's own."""
        llm = cls.__new__(cls)
        llm._set_up(executor, tokenizer, token_budget)
        return llm

    def _set_up(self, executor: Executor, tokenizer: Tokenizer | None, budget: int | None) -> None:
        self.executor = executor
        self.tokenizer = tokenizer
        self._loop = Loop(executor, tokenizer, budget)
        self._boxes: dict[int, deque[OutputDelta]] = {}
        self._outbox: deque[OutputDelta] = deque()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        continuations: Continuations = None,
    ) -> list[Completion]:
        """Complete every prompt: a text, token ids, or a list of either. The order is kept.

        continuations: for each prompt what follows it, and what the completion goes on from. It is
        fed through decode, so that the vote over the prompt knows nothing of it: a question that
        comes later.
        """
        requests = self._read(prompts, params, continuations)
        return [_joined(*pair) for pair in zip(requests, self._run(requests), strict=True)]

    def score(
        self, prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt]
    ) -> list[Score]:
        """How likely each prompt's continuation is, token by token, through the compressed cache.

        The first token's probability comes from prefill, which attends to everything.
        """
        limits = self.executor.limits
        requests = prompts_module.read_scored(prompts, continuations, self.tokenizer, limits)
        return [_scored(*pair) for pair in zip(requests, self._run(requests), strict=True)]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[OutputDelta]:
        """Complete one prompt step by step. Closing the iterator cancels the request."""
        return self._follow(self._read([prompt], params))

    def read(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Check one prompt, for a later `submit`. Any thread may: nothing is queued or changed."""
        (request,) = self._read([prompt], params)
        return request

    def submit(self, prompt: Prompt | Request, params: SamplingParams | None = None) -> int:
        """Queue one prompt for `step`; returns the id that its deltas carry."""
        request = prompt if isinstance(prompt, Request) else self.read(prompt, params)
        return self._loop.submit(request)

    def step(self) -> list[OutputDelta]:
        """Advance everything by one step; what the submitted requests gained since the last.

        An exception of the engine is not raised: it is on the deltas of those that it ended.
        """
        self._step()
        deltas = list(self._outbox)
        self._outbox.clear()
        return deltas

    def cancel(self, request_id: int) -> None:
        """End a request and free its slot; its last delta says "cancelled".

        Nothing happens if it has ended.
        """
        if delta := self._loop.cancel(request_id):
            self._deliver(delta)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything left to do or to tell."""
        return self._loop.busy or bool(self._outbox)

    @property
    def waiting(self) -> frozenset[int]:
        """Requests that have no slot yet."""
        return self._loop.waiting

    @property
    def slots_used(self) -> int:
        """Slots in use, of `executor.limits.batch`."""
        return self._loop.slots_used

    def _read(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        continuations: Continuations = None,
    ) -> list[Request]:
        limits = self.executor.limits
        return prompts_module.read(prompts, params, self.tokenizer, limits, continuations)

    def _run(self, requests: Sequence[Request]) -> list[list[OutputDelta]]:
        """All the deltas of each request, in the order of the requests."""
        parts: dict[int, list[OutputDelta]] = defaultdict(list)
        for delta in self._follow(requests):
            parts[delta.request_id].append(delta)
        return [parts[request_id] for request_id in sorted(parts)]

    def _follow(self, requests: Sequence[Request]) -> Iterator[OutputDelta]:
        """Submit, step and hand out until the requests end, or the caller leaves."""
        box: deque[OutputDelta] = deque()
        live: set[int] = set()
        try:
            for request in requests:
                live.add(request_id := self._loop.submit(request))
                self._boxes[request_id] = box
            while live:
                while not box:
                    self._step()
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


def _joined(request: Request, deltas: Sequence[OutputDelta]) -> Completion:
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    text = "".join(delta.text for delta in deltas)
    logprobs = tuple(one for delta in deltas for one in delta.logprobs)
    reason = deltas[-1].finish_reason
    assert reason is not None
    return Completion(request.prompt_token_ids, text, tokens, reason, logprobs)


def _scored(request: Request, deltas: Sequence[OutputDelta]) -> Score:
    scores = [delta.score for delta in deltas if delta.score is not None]
    return Score(
        request.continuation[: len(scores)],
        tuple(score.logprob for score in scores),
        len(scores) == len(request.continuation) and all(score.is_greedy for score in scores),
    )
