"""Compiles the grammars of an LLM's requests, and keeps the latest.

Any thread may compile. What has not been compiled yet is tried in a process of its own first.
"""

from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from snapexport.errors import UserError, needs_extra
from snapexport.runtime.confined import Confined, Pool
from snapexport.runtime.requests.grammars.grammar import Digits, Grammar
from snapexport.runtime.requests.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class _Opened:
    tokenizer: "LLTokenizer"
    end: int
    digits: Digits
    trials: Pool


class Grammars:
    """Compiles for one tokenizer. Nothing is loaded before `open`, or the first `compile`."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._opened: _Opened | None = None
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._lock = Lock()

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        """The grammar of a form. Raises UserError."""
        opened = self.open()
        with self._lock:
            if found := self._kept.get(outputs):
                self._kept.move_to_end(outputs)
                return found
        grammar = self._compile_new(outputs, opened)
        with self._lock:
            self._kept[outputs] = grammar
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _compile_new(self, outputs: StructuredOutputs, opened: _Opened) -> Grammar:
        from snapexport.runtime.requests.grammars import library

        reply = opened.trials.ask([*outputs.source, outputs.lenient, outputs.within])
        text = reply["grammar"]
        if outputs.within:
            text = library.embed(outputs.within, text)
        matcher = library.matcher_of(opened.tokenizer, text)
        digits = opened.digits if outputs.has_json else None
        grammar = Grammar(matcher, self._vocab_size, opened.end, digits)
        if grammar.begin().must_end:
            raise library.refusal("no text has this form")
        return grammar

    def open(self) -> _Opened:
        """Read the tokenizer. Raises UserError.

        It takes seconds for a large one, in which no other thread runs.
        """
        with self._lock:
            self._opened = self._opened or self._open()
            return self._opened

    def _open(self) -> _Opened:
        if self._tokenizer is None:
            raise UserError(
                "structured outputs need a tokenizer, and the build has none",
                "copy tokenizer.json from the checkpoint into the build",
            )
        with needs_extra("serve"):
            from snapexport.runtime.requests.grammars import library
        vocabulary = library.Vocabulary.of(self._tokenizer)
        trial = partial(
            Confined,
            "snapexport.runtime.requests.grammars.library",
            asdict(vocabulary),
            "structured_outputs can't be compiled",
            "simplify it",
        )
        opened = vocabulary.open()
        texts = [opened.decode_bytes([token]) for token in range(opened.vocab_size)]
        return _Opened(opened, vocabulary.end, Digits.of(texts), Pool(trial))
