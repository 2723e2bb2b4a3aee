"""Measures what a cache costs on running text: it is forced along the continuations of documents.

The full cache runs first; every other cache is compared with it, token by token. Prompts are the
beginnings of one passage, so that the longer ones go on from the shorter ones' prefill.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.measure.eval.documents import Passage
from snapexport.measure.eval.side_by_side import Executors, compared
from snapexport.measure.eval.summaries import CACHE, mean, rows, stderr
from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.batch_executor import BatchExecutor
from snapexport.runtime.requests.sampling import log_softmax

Rows = NDArray[np.float32]
Key = tuple[str, int, int, str]


@dataclass(frozen=True)
class Continuation:
    """One system along one passage after a prompt of `length` tokens; means over the tokens.

    tokens: how many were predicted. nll: negative log likelihood in nats. kl: KL(full || system) in
    nats. agreement: share of the tokens whose likeliest one is the full cache's.
    """

    system: str
    slots: int
    length: int
    passage: str
    tokens: int
    nll: float
    full_nll: float
    kl: float
    agreement: float

    @property
    def key(self) -> Key:
        """System and prompt: a measurement has one record for each key."""
        return self.system, self.slots, self.length, self.passage


@dataclass(frozen=True)
class Prompt:
    """The beginning of a passage, and the tokens that follow it."""

    passage: Passage
    length: int
    tokens: int

    @property
    def key(self) -> tuple[int, str]:
        """Length and passage."""
        return self.length, self.passage.name

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """[length]"""
        return self.passage.ids[: self.length]

    @property
    def continuation_ids(self) -> tuple[int, ...]:
        """[tokens + 1]: prefill predicts the first one, which is not measured."""
        return self.passage.ids[self.length : self.length + self.tokens + 1]


def measure(
    prompts: Sequence[Prompt], executors: Executors, done: Collection[Hashable]
) -> Iterator[Continuation]:
    """Records of every prompt and system, but those in `done`."""
    return compared(prompts, executors, done, _log_probabilities, _record)


def _log_probabilities(executor: BatchExecutor, group: Sequence[Prompt], _: object) -> list[Rows]:
    """float32 [tokens, V] of each prompt, while the continuations are forced."""
    forced = np.array([prompt.continuation_ids for prompt in group], np.int64)
    lengths = np.array([prompt.length for prompt in group], np.int64)
    found = [
        log_softmax(executor.decode(forced[:, step], lengths + step, lengths).logits)
        for step in range(forced.shape[1] - 1)
    ]
    return list(np.stack(found, axis=1, dtype=np.float32, casting="same_kind"))


def _record(system: System, prompt: Prompt, own: Rows, reference: Rows) -> Continuation:
    wanted = np.array(prompt.continuation_ids[1:])[:, None]
    divergence = (np.exp(reference) * (reference - own)).sum(-1)
    return Continuation(
        system.name,
        system.slots,
        *prompt.key,
        len(wanted),
        nll=-float(np.take_along_axis(own, wanted, -1).mean()),
        full_nll=-float(np.take_along_axis(reference, wanted, -1).mean()),
        kl=float(divergence.mean()),
        agreement=float((own.argmax(-1) == reference.argmax(-1)).mean()),
    )


def results(records: Iterable[Continuation]) -> list[dict[str, Any]]:
    """A row for each system, slots and length: means over passages, with standard errors."""
    return rows(records, CACHE, _summary)


def of_one(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what compares it with the full cache."""
    return {name: row[name] for name in row if not name.startswith(("loss", "kl", "agreement"))}


def _summary(group: Sequence[Continuation]) -> dict[str, Any]:
    """loss: of log likelihood a token against the full cache. losses: each passage's, by name."""
    group = sorted(group, key=lambda one: one.passage)
    columns = {
        "nll": [record.nll for record in group],
        "loss": [record.nll - record.full_nll for record in group],
        "kl": [record.kl for record in group],
        "agreement": [record.agreement for record in group],
    }
    found: dict[str, Any] = {
        "passages": len(group),
        "tokens": sum(record.tokens for record in group),
    }
    for name, values in columns.items():
        found |= {name: mean(values), f"{name}_stderr": stderr(values)}
    return found | {"losses": [round(loss, 5) for loss in columns["loss"]]}
