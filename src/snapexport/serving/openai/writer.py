"""The protocol of what writes an answer in a client's form: whole, or as a stream's events."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.openai.errors import ApiError

Object = dict[str, Any]


class Usage:
    """Tokens of prompts and answers. A prompt with n answers counts once."""

    def __init__(self, prompt_tokens: int, answers_each: int) -> None:
        """prompt_tokens: of all prompts. answers_each: n, the answers of each prompt."""
        self.prompt, self.completion, self.cached = prompt_tokens, 0, 0
        self._answers_each = answers_each

    def add(self, index: int, output: OutputDelta) -> None:
        """Count an output of the answer `index`."""
        self.completion += len(output.token_ids)
        if index % self._answers_each == 0:
            self.cached += output.cached_tokens

    def as_json(self) -> Object:
        """`usage` of chats and completions. cached_tokens: those that parked rows held."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Writer(ABC):
    """Writes the objects of one HTTP request.

    names_events: whether an event of the stream has its object's `type` as its name. last: what
    ends a stream that did not fail.
    """

    names_events = False
    last = b""

    @abstractmethod
    def whole(self, answers: Sequence[OutputDelta]) -> Object:
        """The object of an answer that is not streamed."""

    @abstractmethod
    def chunks(self, index: int, output: OutputDelta) -> list[Object]:
        """The chunks of one output."""

    @abstractmethod
    def last_chunks(self) -> list[Object]:
        """The chunks after the last output."""

    @abstractmethod
    def failed(self, error: ApiError) -> list[Object]:
        """The chunks that end a stream in place of the last ones."""
