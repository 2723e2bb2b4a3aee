"""The model `snapexport` of lm-evaluation-harness: a build answers the harness's three questions.

generate_until and both loglikelihoods go through the same road as any request: the prompt is
prefilled and compressed, and what follows is decoded on the compressed cache. So the scores show
what the compression costs. How a text is read is `tokens`'s and `chat`'s, what fits is `room`'s.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import snapexport
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import Manifest
from snapexport.eval.harness import answers, chat, tokens
from snapexport.eval.harness.answers import Scored, Tokens
from snapexport.eval.harness.generation_args import sampling_params
from snapexport.eval.harness.model_args import read
from snapexport.eval.harness.room import fit
from snapexport.runtime.llm import LLM


class SnapexportLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A build as the harness sees it. Raises UserError."""

    def __init__(self, batch_size: int | str = 1, device: object = None, **model_args: Any) -> None:
        """Load a build; `model_args` are ModelArgs' fields.

        batch_size and device are the harness's own flags. It passes a device of its own choice
        where none is named, so device decides nothing here.
        """
        super().__init__()
        self._args = args = read(model_args)
        self._llm = LLM(
            args.directory,
            baseline=args.baseline,
            threads=args.threads,
            prepack=args.prepack,
            backend=args.backend,
        )
        self._limits = self._llm.executor.limits
        _require_slots(batch_size, self._limits.batch)
        self._config = tokens.read_config(args.directory)
        self._encoder = self._make_encoder()

    def _make_encoder(self) -> tokens.Encoder:
        if self._llm.tokenizer is None:
            raise UserError(
                f"{self._args.directory} has no tokenizer.json", "copy it from the checkpoint"
            )
        return tokens.Encoder(self._llm.tokenizer, self._config, self._limits.eos_token_id)

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
        asked = [request.args for request in requests]
        params = [sampling_params(arguments, self._args.max_gen_toks) for _, arguments in asked]
        prompts = [self.tok_encode(context) or [self.prefix_token_id] for context, _ in asked]
        fitting = fit(prompts, [one.max_tokens for one in params], self._limits)
        texts = [""] * len(asked)
        with tqdm(total=len(asked), disable=disable_tqdm, desc="Generating") as bar:
            for index, text in answers.complete(self._llm, fitting, params):
                texts[index] = text
                self.cache_hook.add_partial("generate_until", asked[index], text)
                bar.update()
        return texts

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, Tokens, Tokens]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[Scored]:
        """Sum of the continuation's log-probabilities, and whether greedy decoding gives it.

        requests: (what the cache is to know it by, or None; context; continuation).
        """
        continuations = [continuation for _, _, continuation in requests]
        contexts = fit(
            [context for _, context, _ in requests], list(map(len, continuations)), self._limits
        )
        results: list[Scored] = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Scoring") as bar:
            # As many at once as there are slots: prefill takes the time, and the bar moves on.
            for start in range(0, len(requests), self._limits.batch):
                part = slice(start, start + self._limits.batch)
                results += answers.score(self._llm, contexts[part], continuations[part])
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

        Each window but the last has a prompt of one token, so that sinks and ring alone are seen.
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
        """Contexts and continuations: together they predict each token of the text once."""
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,  # beside the token before the window
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def apply_chat_template(
        self, chat_history: Sequence[chat.Message], add_generation_prompt: bool = True
    ) -> str:
        return self._chat_template.render(chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source, for the results. One by name is not to be had."""
        if isinstance(chat_template, str):
            raise UserError(
                f"chat template '{chat_template}' is asked for by name, but a build has one",
                "pass --apply_chat_template without a name",
            )
        return self._chat_template.source if chat_template else None

    @property
    def _chat_template(self) -> chat.ChatTemplate:
        return chat.load(self._args.directory, self._config)

    @property
    def tokenizer_name(self) -> str:
        """Names the files that the harness keeps prepared requests in."""
        return str(self._args.directory.resolve()).replace("/", "__")

    def get_model_info(self) -> Mapping[str, Any]:
        """What the results file is to say of the build."""
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


def _require_slots(batch_size: int | str, slots: int) -> None:
    """1 is the harness's default: it cannot be told from a wish."""
    if str(batch_size).partition(":")[0] not in ("1", "auto", str(slots)):
        raise UserError(
            f"batch_size {batch_size} is not the build's, which has {slots} slots",
            f"leave out --batch_size, or build again with --batch {batch_size}",
        )
