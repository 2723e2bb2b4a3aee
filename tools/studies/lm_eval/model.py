"""Implements the model `snapexport` of lm-evaluation-harness on a build.

generate_until and both loglikelihoods run like any request: the prompt is prefilled and compressed,
and the rest is decoded on the compressed cache. So the scores show what compression costs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import snapexport
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.runtime.chat import chat_template as templates
from snapexport.runtime.chat.chat_template import TemplateProcesses
from snapexport.runtime.chat.template_files import read_config
from snapexport.runtime.requests.llm import LLM
from tools.studies.lm_eval.arguments import model_args, sampling_params
from tools.studies.lm_eval.prompts import Encoder
from tools.studies.lm_eval.requests import Scored, Tokens, complete, fit, score


class SnapexportLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A build as the harness sees it. Raises UserError."""

    def __init__(self, batch_size: int | str = 1, device: object = None, **arguments: Any) -> None:
        """Load a build; `arguments` are the fields of ModelArgs.

        batch_size and device are the harness's flags. device is ignored: the harness passes one of
        its own choice where none was given.
        """
        super().__init__()
        self._args = args = model_args(arguments)
        self._llm = LLM(
            args.directory,
            baseline=args.baseline,
            threads=args.threads,
            prepack=args.prepack,
            backend=args.backend,
        )
        self._limits = self._llm.executor.limits
        _require_batch(batch_size, self._limits.batch)
        self._config = read_config(args.directory)
        if self._llm.tokenizer is None:
            raise UserError(
                f"{args.directory} has no tokenizer.json", "copy it from the checkpoint"
            )
        self._encoder = Encoder(self._llm.tokenizer, self._config, self._limits.eos_token_id)

    @property
    def eot_token_id(self) -> int:
        return self._encoder.eot

    @property
    def prefix_token_id(self) -> int:
        return self._encoder.prefix

    @property
    def max_length(self) -> int:
        """The longest prompt. A compressed build generates past it."""
        return self._limits.longest_prompt

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        return self._encoder.encode(string, add_special_tokens)

    def tok_decode(self, token_ids: list[int], **_: Any) -> str:
        return self._encoder.decode(token_ids)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each prompt, in the order of the requests."""
        calls = [request.args for request in requests]
        params = [sampling_params(arguments, self._args.max_gen_toks) for _, arguments in calls]
        contexts = [self.tok_encode(context) or [self.prefix_token_id] for context, _ in calls]
        fitting = fit(contexts, [one.max_tokens for one in params], self._limits)
        texts = [""] * len(calls)
        with tqdm(total=len(calls), disable=disable_tqdm, desc="Generating") as bar:
            for index, text in complete(self._llm, fitting, params):
                texts[index] = text
                self.cache_hook.add_partial("generate_until", calls[index], text)
                bar.update()
        return texts

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, Tokens, Tokens]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[Scored]:
        """Sum of the continuation's log-probabilities, and whether greedy decoding gives it.

        requests: (key in the harness's cache, or None; context; continuation).
        """
        continuations = [continuation for _, _, continuation in requests]
        contexts = fit(
            [context for _, context, _ in requests], list(map(len, continuations)), self._limits
        )
        results: list[Scored] = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Scoring") as bar:
            # As many at once as there are batch slots, so that the bar moves on.
            for start in range(0, len(requests), self._limits.batch):
                part = slice(start, start + self._limits.batch)
                results += score(self._llm, contexts[part], continuations[part])
                self._remember(requests[part], results[part])
                bar.update(len(contexts[part]))
        return results

    def _remember(self, requests: Sequence[tuple[Any, Tokens, Tokens]], results: Any) -> None:
        for (key, _, _), result in zip(requests, results, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text, in windows of the longest prompt's length.

        Each window but the last has a prompt of one token: nothing is voted.
        """
        texts = [request.args[0] for request in requests]
        windows = [self._windows(text) for text in texts]
        flat = [(None, context, continuation) for each in windows for context, continuation in each]
        scored = iter(self._loglikelihood_tokens(flat, disable_tqdm=disable_tqdm))
        totals = [math.fsum(next(scored)[0] for _ in each) for each in windows]
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def _windows(self, text: str) -> list[tuple[Tokens, Tokens]]:
        """Contexts and continuations that together predict each token of the text once."""
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,  # and the token before the window
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def apply_chat_template(
        self, chat_history: Sequence[templates.Message], add_generation_prompt: bool = True
    ) -> str:
        template = self._chat_template_apart
        with _flags_in_hint("--system_instruction, or --apply_chat_template"):
            return template.render(chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source, for the results. A build has no templates by name."""
        if isinstance(chat_template, str):
            raise UserError(
                f"--apply_chat_template names '{chat_template}', but a build has one template",
                "pass --apply_chat_template without a name",
            )
        return self._chat_template.source if chat_template else None

    @property
    def _chat_template(self) -> templates.ChatTemplate:
        with _flags_in_hint("--apply_chat_template"):
            return templates.load(self._args.directory, self._config)

    @cached_property
    def _chat_template_apart(self) -> TemplateProcesses:
        with _flags_in_hint("--apply_chat_template"):
            return TemplateProcesses(self._chat_template)

    @property
    def tokenizer_name(self) -> str:
        """Part of the names of the harness's files of prepared requests."""
        return str(self._args.directory.resolve()).replace("/", "__")

    def get_model_info(self) -> Mapping[str, Any]:
        """Facts of the build for the results file."""
        manifest = Manifest.read(self._args.directory).model_dump(mode="json")
        kept = {key: manifest[key] for key in ("geometry", "batch", "prefill_chunk", "dtype")}
        return {
            "snapexport": {
                "version": snapexport.__version__,
                "build": str(self._args.directory),
                "baseline": self._args.baseline,
                **kept,
            }
        }


@contextmanager
def _flags_in_hint(flags: str) -> Iterator[None]:
    """Names in a hint the flags that the user can change: the messages are the task's."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message, f"leave out {flags}, or {error.hint}") from None


def _require_batch(batch_size: int | str, batch: int) -> None:
    """Refuse another batch size, except 1: it is the harness's default."""
    if str(batch_size).partition(":")[0] not in ("1", "auto", str(batch)):
        raise UserError(
            f"batch_size {batch_size} is not the build's batch, which is {batch}",
            f"leave out --batch_size, or build again with --batch {batch_size}",
        )
