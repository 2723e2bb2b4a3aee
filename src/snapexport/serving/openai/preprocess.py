"""Turns a body into the runtime's requests: token ids and sampling parameters.

The runtime's checks validate the requests. A chat's special tokens come from the template; the
tokenizer adds none. Knows no generator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.runtime.chat import chat_template, template_files
from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.chat.template_process import TemplateProcesses
from snapexport.runtime.engine.graph_set import PrefillForm
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests import prompts
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.serving.openai.errors import ApiError, from_user_error, invalid
from snapexport.serving.openai.protocol import ChatRequest, CompletionRequest, RequestBody
from snapexport.serving.token_text import TokenText, token_texts

Template = chat_template.ChatTemplate | TemplateProcesses


@dataclass(frozen=True)
class Preprocessor:
    """A build's tokenizer, chat template and limits. template None: chats are refused."""

    tokenizer: Tokenizer
    template: Template | None
    limits: Limits
    most_answers: int = 64
    """Most answers of one body: prompts times n."""

    @classmethod
    def open(cls, build: Path, max_pending: int, prefill: PrefillForm = "chunks") -> "Preprocessor":
        """Read a build's files. Raises UserError.

        max_pending: requests that may wait for a batch slot. A body may not ask for more answers
        than can run and wait. prefill: how the runtime takes prompts.
        """
        manifest = Manifest.read(build)
        tokenizer = prompts.load_tokenizer(build)
        if tokenizer is None:
            raise UserError(f"{build} has no tokenizer.json", "copy it from the checkpoint")
        full_cache = not manifest.geometry.compresses
        limits = Limits.of(manifest, full_cache=full_cache, form=prefill)
        room = limits.batch + max_pending
        return cls(tokenizer, _template(build), limits, min(cls.most_answers, room))

    def close(self) -> None:
        """End the chat template's processes."""
        if isinstance(self.template, TemplateProcesses):
            self.template.close()

    def chat(self, body: ChatRequest) -> list[Request]:
        """The chat's request, n times. Raises ApiError."""
        if self.template is None:
            raise invalid(
                "the build has no chat template: use /v1/completions, or copy the checkpoint's "
                "chat_template.jinja into the build",
                code="no_chat_template",
            )
        messages = [
            {"role": self._role(message.role), "content": message.content}
            for message in body.messages
        ]
        try:
            _require_known(body.chat_template_kwargs, self.template)
            text = self.template.render(messages, True, body.chat_template_kwargs)
        except UserError as error:
            raise from_user_error(error, "messages") from None
        requests = self._requests(body, [self._encode(text, "messages", False)], "messages")
        return [replace(one, params=self._ending(one.params)) for one in requests]

    def completion(self, body: CompletionRequest) -> list[Request]:
        """A request for each prompt, n times in a row. Raises ApiError."""
        return self._requests(body, body.prompt, "prompt")

    def echoes(self, body: CompletionRequest) -> list[str]:
        """The prompt's text for each answer; none without `echo`."""
        texts = [
            one if isinstance(one, str) else self.tokenizer.decode(one)
            for one in (body.prompt if body.echo else ())
        ]
        return [text for text in texts for _ in range(body.n)]

    @cached_property
    def text_of(self) -> TokenText:
        """The text of a token."""
        return token_texts(self.tokenizer)

    def _ending(self, params: SamplingParams | None) -> SamplingParams:
        """The parameters of a chat, which end it at the template's end token too."""
        assert params is not None
        return self._chat_prompts.ending(params)

    @cached_property
    def _chat_prompts(self) -> ChatPrompts:
        assert self.template is not None
        return ChatPrompts(self.tokenizer, self.template, self.limits.eos_token_id)

    def _role(self, role: str) -> str:
        """Replace the role developer by system for a template that does not know developer."""
        assert self.template is not None
        is_unknown = role == "developer" and "developer" not in self.template.source
        return "system" if is_unknown else role

    def _requests(
        self, body: RequestBody, texts: list[str | list[int]], param: str
    ) -> list[Request]:
        if len(texts) * body.n > self.most_answers:
            raise invalid(f"one request may ask for {self.most_answers} answers, prompts x n", "n")
        read = [self._token_ids(text, param) for text in texts]
        return [
            Request(ids, self._params(body, len(ids), index), session=body.prompt_cache_key or "")
            for ids in read
            for index in range(body.n)
        ]

    def _token_ids(self, text: str | list[int], param: str) -> tuple[int, ...]:
        ids = self._encode(text, param) if isinstance(text, str) else text
        if len(ids) > self.limits.longest_prompt:
            raise _too_long(
                f"the prompt has {len(ids)} tokens, the model takes {self.limits.longest_prompt}",
                param,
            )
        try:
            (request,) = prompts.read([ids], None, self.tokenizer, self.limits)
        except UserError as error:
            raise from_user_error(error, param) from None
        return request.prompt_token_ids

    def _encode(self, text: str, param: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; none for an empty text, even if the tokenizer adds some."""
        if not text:
            return []
        try:
            prompts.require_readable(text, self.limits)
        except UserError as error:
            raise _too_long(error.message, param) from None
        # `encode` holds the interpreter's lock and stalls all streams; `encode_batch` releases it.
        (encoding,) = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _params(self, body: RequestBody, prompt_length: int, index: int) -> SamplingParams:
        left = self.limits.positions - prompt_length + 1
        return SamplingParams(
            max_tokens=min(body.token_limit or left, left),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
            seed=None if body.seed is None else body.seed + index,
            stop=tuple(body.stop),
            ignore_eos=body.ignore_eos,
            logprobs=body.top_logprobs_count,
        )


def _too_long(message: str, param: str) -> ApiError:
    return invalid(message, param, "context_length_exceeded")


def _require_known(options: Mapping[str, Any], template: Template) -> None:
    if unread := sorted(options.keys() - template.options):
        raise invalid(
            f"chat_template_kwargs: the template does not read '{unread[0]}'",
            "chat_template_kwargs",
        )


def _template(build: Path) -> TemplateProcesses | None:
    """The build's chat template, or None. Raises UserError for a broken one."""
    config = template_files.read_config(build)
    try:
        template = chat_template.load(build, config)
    except UserError:
        return None
    return TemplateProcesses(template)
