"""Defines what the form of an answer may be prescribed by, under vLLM's names.

Knows no tokenizer and no grammar library: `grammars` compiles it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError

Kind = Literal["json", "regex", "choice", "grammar"]

NAMES = "json", "regex", "choice", "grammar", "json_object"

MOST_CHARACTERS = 1 << 17
"""Of a schema, an expression or a grammar. OpenAI's API takes schemas of about this size."""


class Place(Protocol):
    """The place of an answer in its form."""

    @property
    def may_end(self) -> bool:
        """Whether the text so far is all that the form asks for."""

    @property
    def must_end(self) -> bool:
        """Whether nothing may follow."""

    def bias(self) -> NDArray[np.float32]:
        """For the logits [V]: 0 for tokens that may be next, -inf for others."""

    def take(self, token: int) -> None:
        """Go on by an allowed token. Raises UserError if the form can't be followed further."""


class Grammar(Protocol):
    """A compiled form. vocab_size: of the logits."""

    @property
    def vocab_size(self) -> int: ...

    def begin(self) -> Place:
        """The place of a new answer."""


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form of an answer: one of these. Immutable; invalid values raise UserError.

    json: a JSON schema, as an object or its text. json_object: any JSON object. regex: a regular
    expression that the whole answer matches. choice: the answer is one of these texts. grammar: of
    llguidance's Lark, or llama.cpp's GBNF.

    within: a Lark grammar in which `@form` stands for the form, such as for reasoning before it.

    writes_json: of a grammar: its numbers are bounded as those of `json` are.

    lenient: ignore what a schema says that can't be enforced, where it is refused otherwise. An
    answer may then violate it.

    To force an answer's form from within a server, such as a tool call's: put one of these into the
    parameters of a request that `LLM.constrained` is then called with.
    """

    json: Mapping[str, Any] | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    lenient: bool = False
    within: str | None = None
    writes_json: bool = False

    def __post_init__(self) -> None:
        given = [name for name in NAMES if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = " and ".join(given) or "nothing"
            raise UserError(
                f"structured_outputs has {what}",
                "give one of json, regex, choice, grammar and json_object",
            )
        for name in "json_object", "lenient", "writes_json":
            if not isinstance(value := getattr(self, name), bool | None):
                raise UserError(f"{name} {value!r:.200} cannot be used", "give True or False")
        if self.json is not None and not isinstance(self.json, str):
            object.__setattr__(self, "json", _as_json(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _texts(self.choice))
        _require_text(given[0], self.source[1])
        if self.within is not None:
            _require_text("within", self.within)

    @classmethod
    def of(cls, given: object) -> "StructuredOutputs":
        """The form that an object of a client's names, by vLLM's names. Raises UserError."""
        if not isinstance(given, Mapping) or not given.keys() <= set(NAMES):
            raise UserError(
                f"{given!r:.200} is not a form of an answer",
                f"give an object with one of {', '.join(NAMES)}",
            )
        return cls(**given)

    @property
    def has_json(self) -> bool:
        """Whether the digits of its numbers are bounded."""
        return self.writes_json or self.source[0] == "json"

    @property
    def source(self) -> tuple[Kind, str]:
        """Its kind, and its text: of a choice a JSON list."""
        if self.json_object:
            return "json", '{"type":"object"}'
        if self.json is not None:
            return "json", str(self.json)
        if self.choice is not None:
            return "choice", json.dumps(self.choice)
        if self.regex is not None:
            return "regex", self.regex
        assert self.grammar is not None
        return "grammar", self.grammar


def _as_json(schema: object) -> str:
    hint = "give a schema, as an object of JSON's types or as its text"
    if not isinstance(schema, Mapping):
        raise UserError(f"json {schema!r:.200} cannot be used", hint)
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the schema is not JSON: {error}", hint) from None


def _texts(values: object) -> tuple[str, ...]:
    texts = tuple(values) if isinstance(values, list | tuple) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f"choice {values!r:.200} cannot be used", "give a list of texts")
    return texts


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise UserError(f"{name} {text!r:.200} cannot be used", "give a text")
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"{name} has {len(text)} characters", f"{MOST_CHARACTERS} are taken at the most"
        )
