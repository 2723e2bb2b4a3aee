"""A request's body, read into what the runtime takes: token ids and sampling parameters.

The checks are the runtime's own, so that what is refused here would be refused there. Every text
becomes tokens here: a chat's text has its special tokens from the template, and gets no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import Manifest
from snapexport.runtime import prompts
from snapexport.runtime.executor import Limits
from snapexport.runtime.requests import Request, SamplingParams
from snapexport.serving import chat
from snapexport.serving.chat.special_tokens import read_config
from snapexport.serving.openai.bodies import Asked, ChatRequest, CompletionRequest
from snapexport.serving.openai.errors import ApiError, from_user_error, invalid


@dataclass(frozen=True)
class Reader:
    """A build's tokenizer, chat template and limits. No template: there is no chat."""

    tokenizer: Tokenizer
    template: chat.ChatTemplate | None
    limits: Limits
    most_answers: int = 64
    """What one body may ask for: its prompts times n."""

    @classmethod
    def open(cls, build: Path, max_pending: int) -> "Reader":
        """Read a build's files. max_pending: requests that may wait for a slot. Raises UserError.

        A body that asks for more answers than may run and wait could never be answered.
        """
        manifest = Manifest.read(build)
        tokenizer = prompts.load_tokenizer(build)
        if tokenizer is None:
            raise UserError(f"{build} has no tokenizer.json", "copy it from the checkpoint")
        limits = Limits.of(manifest, full_cache=not manifest.geometry.compresses)
        room = limits.batch + max_pending
        return cls(tokenizer, _template(build), limits, min(cls.most_answers, room))

    def chat(self, body: ChatRequest) -> list[Request]:
        """The chat's prompt, n times. Raises ApiError."""
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
            _require_read(body.chat_template_kwargs, self.template)
            text = self.template.render(messages, True, body.chat_template_kwargs)
        except UserError as error:
            raise from_user_error(error, "messages") from None
        return self._requests(body, [self._encode(text, "messages", False)], "messages")

    def completion(self, body: CompletionRequest) -> list[Request]:
        """Each prompt n times: the n answers of a prompt stand together. Raises ApiError."""
        return self._requests(body, body.prompt, "prompt")

    def text_of(self, prompt: str | list[int]) -> str:
        """The prompt as it is echoed."""
        text: str = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        return text

    def _role(self, role: str) -> str:
        """Older templates know no developer, and would drop the message or refuse it."""
        assert self.template is not None
        is_new = role == "developer" and "developer" not in self.template.source
        return "system" if is_new else role

    def _requests(self, body: Asked, texts: list[str | list[int]], param: str) -> list[Request]:
        if len(texts) * body.n > self.most_answers:
            raise invalid(f"one request may ask for {self.most_answers} answers, prompts x n", "n")
        read = [self._token_ids(text, param) for text in texts]
        return [
            Request(ids, self._params(body, len(ids), index))
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
        """As the runtime does for any prompt: nothing is put before an empty text."""
        if not text:
            return []
        try:
            prompts.require_readable(text, self.limits)
        except UserError as error:
            raise _too_long(error.message, param) from None
        # `encode` holds the interpreter's lock, and with it all streams; of a batch it is released.
        (encoding,) = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _params(self, body: Asked, prompt_length: int, index: int) -> SamplingParams:
        left = self.limits.positions - prompt_length + 1
        return SamplingParams(
            max_tokens=min(body.most_tokens or left, left),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
            seed=None if body.seed is None else body.seed + index,
            stop=tuple(body.stop),
            ignore_eos=body.ignore_eos,
            logprobs=body.alternatives,
        )


def _too_long(message: str, param: str) -> ApiError:
    return invalid(message, param, "context_length_exceeded")


def _require_read(options: Mapping[str, Any], template: chat.ChatTemplate) -> None:
    if unread := sorted(options.keys() - template.options):
        raise invalid(
            f"chat_template_kwargs: the template does not read '{unread[0]}'",
            "chat_template_kwargs",
        )


def _template(build: Path) -> chat.ChatTemplate | None:
    """None where the build has none. Raises UserError where it has one that is broken."""
    config = read_config(build)
    try:
        template = chat.load(build, config)
    except UserError:
        return None
    template.require_sound()
    return template
