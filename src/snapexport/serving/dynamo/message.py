"""Defines the message of a prefill worker to a decode worker: JSON, through Dynamo's frontend.

Knows no NIXL. Addresses are the prefill worker's own, and only NIXL can use them.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from snapexport.errors import UserError
from snapexport.runtime.engine.rows import Device
from snapexport.runtime.requests.request import TokenLogprobs
from snapexport.serving.openai.logprobs import LEAST

_Natural = Annotated[int, Field(ge=0, lt=1 << 63)]
_Token = Annotated[int, Field(ge=0, lt=1 << 32)]


class Span(BaseModel):
    """Bytes in a worker's memory."""

    model_config = ConfigDict(extra="forbid", strict=True)
    address: Annotated[int, Field(ge=0, lt=1 << 64)]
    nbytes: Annotated[int, Field(ge=1, lt=1 << 48)]


class Logprob(BaseModel):
    """The first token's log probability, and the likeliest tokens with theirs. All are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    logprob: float
    top_tokens: list[_Token]
    top_logprobs: list[float]

    @classmethod
    def of(cls, token: TokenLogprobs) -> "Logprob":
        return cls(
            logprob=max(token.logprob, LEAST),
            top_tokens=[other for other, _ in token.top],
            top_logprobs=[max(logprob, LEAST) for _, logprob in token.top],
        )

    def as_of(self, token: int) -> TokenLogprobs:
        """The same, for the runtime."""
        pairs = zip(self.top_tokens, self.top_logprobs, strict=False)
        return TokenLogprobs(token, self.logprob, tuple(pairs))


class HandOver(BaseModel):
    """A prefilled prompt: where its row lies, and what decode needs to go on.

    digest: of the build. agent: NIXL's metadata of the prefill worker, base64. lease: names the row
    to the prefill worker. stamp: 8 bytes that hold `lease` as long as the row is this prompt's.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    digest: str
    place: Device
    agent: str
    lease: Annotated[int, Field(ge=1, lt=1 << 63)]
    stamp: Span
    row: list[Span]
    prompt_length: _Natural
    first_token: _Token
    logprobs: list[Logprob]


def read(given: Any) -> HandOver:
    """Check what came through the frontend. Raises UserError."""
    try:
        return HandOver.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the whole"
        raise UserError(
            f"the prefill worker's hand-over is not valid: {where}: {problem['msg'].lower()}",
            "run one version of snapexport in every worker",
        ) from None
