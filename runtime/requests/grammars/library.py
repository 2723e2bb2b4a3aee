"""Calls llguidance: tokenizers, grammars and their limits. Imported where one is compiled.

    python -m snapexport.runtime.requests.grammars.library

compiles grammars as a process of its own, for `grammar`: a small one may take all time and all
memory. The first message is a vocabulary, and each further one a form to compile.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
from tokenizers import Tokenizer

from snapexport.errors import UserError, first_line
from snapexport.runtime.confined import OPENING_CPU_SECONDS, serve
from snapexport.runtime.requests.grammars.schemas import acceptable, close_objects
from snapexport.runtime.requests.structured_outputs import Kind

_LIMITS = llguidance.LLParserLimits(verbose_errors=False, max_lexer_states=50_000)

_WHITESPACE = r"[ \t]{1,2}|\r?\n[ \t]{0,40}"
"""Between JSON's tokens. Without a bound a model may write spaces to the end."""

_END = "<|end of a structured output|>"

_WALK = 8
"""Tokens that a trial takes."""

_GBNF = re.compile(r"(?m)^[ \t]*root\s*::=")
"""llguidance itself takes for GBNF what has no `start:`, and so what has `?start:`."""

_SHOWN = re.compile(r"\n +\d+ \| .*|<non-verbose/>", re.S)
_SCHEMA = re.compile(r"// (parameters of .*)\n +\^")
"""What follows an error: lines of the grammar. Forced calls name the tool in the one that fails."""

_WORDS = {
    "NoExtensionBias": "no text has this form",
    "Enable 'coerce_one_of' option to approximate oneOf with anyOf": "Use anyOf, or no `strict`",
}
"""Of its errors, in a client's words."""

_HINT = "simplify it; https://github.com/guidance-ai/llguidance says what is supported"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A build's tokens, for llguidance.

    tokenizer: tokenizer.json's text, with one token more. end: that token's id. It ends an answer
    for llguidance, and is never sampled: a request knows its own end tokens.
    """

    tokenizer: str
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """The vocabulary of a tokenizer, which is left as it is."""
        changed = Tokenizer.from_str(tokenizer.to_str())
        changed.add_special_tokens([_END])
        end = changed.token_to_id(_END)
        assert end is not None, "it was added"
        return cls(changed.to_str(), end)

    def open(self) -> llguidance.LLTokenizer:
        """Raises UserError for a tokenizer of a kind that llguidance doesn't know."""
        try:
            return llguidance.LLTokenizer(self.tokenizer, eos_token=[self.end])
        except ValueError as error:
            raise UserError(
                f"structured outputs can't be had with this tokenizer: {first_line(error)}",
                "use a checkpoint with a byte-level or SentencePiece tokenizer",
            ) from None


def grammar_of(kind: Kind, text: str, lenient: bool, closes: bool = True) -> str:
    """llguidance's own form of a grammar. closes: the objects of a schema. Raises UserError."""
    try:
        if kind == "regex":
            return _of_regex(text)
        if kind == "grammar" and not _GBNF.search(text):
            return llguidance.LLMatcher.grammar_from_lark(text)
        if kind != "json":
            return llguidance.grammar_from(kind, text)
        options: Any = {"whitespace_pattern": _WHITESPACE}
        options |= {"lenient": True, "coerce_one_of": True} if lenient else {}
        schema = json.loads(text, parse_float=_finite, parse_constant=_finite)
        source = json.dumps(acceptable(close_objects(schema) if closes else schema, lenient))
        return llguidance.LLMatcher.grammar_from_json_schema(source, defaults=options)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise refusal(str(error)) from None


def _finite(number: str) -> float:
    """The number. Raises UserError for one that no double is."""
    if math.isfinite(value := float(number)):
        return value
    raise UserError(f"a schema has the number {number}, which no double is", "leave it out")


def _of_regex(text: str) -> str:
    r"""The grammar of an expression whose \d and \w are ASCII, as in JSON schemas."""
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise ValueError("the regex ends in a backslash")
    # In place of \d comes a class, with which a - before it would make a range.
    plain = re.sub(r"(\\.)|-(?=\\[dDwWsS])", lambda found: found[1] or r"\-", text, flags=re.S)
    lark = llguidance.regex_to_lark(plain, "dw")
    return llguidance.LLMatcher.grammar_from_lark(f"start: /{lark}/")


def embed(outer: str, form: str) -> str:
    """The form, as `grammar_of` returns it, where a Lark grammar says @form."""
    is_lark = not form.lstrip().startswith("{")
    first, *others = [{"lark_grammar": form}] if is_lark else json.loads(form)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": outer}, first | {"name": "form"}, *others]})


def matcher_of(tokenizer: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
    """A matcher at the beginning, with its first mask made. Raises UserError."""
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise refusal(matcher.get_error())
    return matcher


def walk(matcher: llguidance.LLMatcher, end: int) -> None:
    """Take some tokens, as an answer would: some grammars explode then. Raises UserError."""
    for _ in range(_WALK):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        bits[end] = 0
        allowed = np.flatnonzero(bits)
        if matcher.is_stopped() or not len(allowed):
            break
        matcher.consume_token(int(allowed[len(allowed) // 2]))
    if matcher.is_error():
        raise refusal(matcher.get_error())


def refusal(why: str) -> UserError:
    """The error of a grammar that llguidance doesn't take, without the grammar that it shows."""
    reason = _SHOWN.sub("", why)
    for own, plain in _WORDS.items():
        reason = reason.replace(own, plain)
    if schema := _SCHEMA.search(why):
        reason = f"{schema[1]}: {reason.rpartition('JSON schema: ')[2]}"
    return UserError(f"structured_outputs can't be compiled: {' '.join(reason.split())}", _HINT)


class _Trial:
    """Opens the vocabulary of the first message, and compiles the form of each further one."""

    _tokenizer: Any = None
    _end = 0

    def answer(self, given: bytes) -> Mapping[str, Any]:
        """The reply to a message."""
        try:
            if self._tokenizer is None:
                vocabulary = Vocabulary(**json.loads(given))
                self._tokenizer, self._end = vocabulary.open(), vocabulary.end
                return {}
            kind, text, lenient, within = json.loads(given)
            try:
                grammar = self._try(kind, text, lenient, True)
            except UserError:  # joined objects may leave no answer once they are closed
                grammar = self._try(kind, text, lenient, False)
            if within:  # text before the form puts it off, so that both are tried
                matcher_of(self._tokenizer, embed(within, grammar))
            return {"grammar": grammar}
        except UserError as error:
            return {"message": error.message, "hint": error.hint}

    def _try(self, kind: Kind, text: str, lenient: bool, closes: bool) -> str:
        grammar = grammar_of(kind, text, lenient, closes)
        walk(matcher_of(self._tokenizer, grammar), self._end)
        return grammar


if __name__ == "__main__":
    serve(_Trial().answer, OPENING_CPU_SECONDS)
