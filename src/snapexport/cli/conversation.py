"""Holds a conversation with a build: the messages so far, and the answer to the next one.

Knows no terminal and no flags.
"""

from collections.abc import Callable

from snapexport.cli.prompt import system_message
from snapexport.cli.streaming import Answer, stream
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import Message, PromptTooLongError
from snapexport.runtime.requests.request import Request, SamplingParams

NEW = "start anew with /reset"


class Conversation:
    """A conversation. A turn that fails leaves it as it was."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm, self._params = llm, params
        self._start: list[Message] = system_message(system)
        self._messages = self._start

    @property
    def longest(self) -> int:
        """Tokens that a conversation may have before an answer."""
        return self._llm.executor.limits.longest_prompt

    def reset(self) -> None:
        """Forget all but the system message."""
        self._messages = self._start

    def ask(
        self, text: str, show: Callable[[str], None], interrupted: Callable[[], bool]
    ) -> Answer:
        """Stream the answer to a message of the user's. Raises UserError.

        An interrupted answer stays in the conversation as far as it came.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = stream(self._llm, self._read(messages, text), show, interrupted)
        if answer.first is not None:
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def left(self, answer: Answer) -> int:
        """About how many tokens are left for the next message."""
        return max(0, self.longest - answer.prompt_tokens - len(answer.token_ids))

    def _read(self, messages: list[Message], text: str) -> Request:
        try:
            return self._llm.read_chat(messages, self._params)
        except PromptTooLongError as error:
            raise self._too_long(error, text) from None

    def _too_long(self, error: PromptTooLongError, text: str) -> UserError:
        """The error in terms of the conversation, with the room that is left."""
        assert self._llm.tokenizer is not None
        message = len(self._llm.tokenizer.encode(text, add_special_tokens=False).ids)
        left = error.most - (error.tokens - message)
        known = self._messages is not self._start
        what = "the conversation would have" if known else "the message makes a prompt of"
        room = f"about {left:,} tokens are left" if left > 0 else "no token is left"
        hint = f"shorten the message, or {NEW}" if left > 0 else NEW
        return UserError(
            f"{what} {error.tokens:,} tokens, the build takes {error.most:,}: {room}",
            hint if known else error.hint,
        )
