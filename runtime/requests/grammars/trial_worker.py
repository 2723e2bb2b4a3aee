"""Compiles grammars as a process of its own: a small one may take all time and all memory.

    python -m snapexport.runtime.requests.grammars.trial_worker

The first message is a vocabulary, and each further one a form to compile. `grammars` is the other
end.
"""

import json
from collections.abc import Mapping
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.confined_worker import OPENING_SECONDS, serve
from snapexport.runtime.requests.grammars import library
from snapexport.runtime.requests.structured_outputs import Kind


class Compiler:
    """Opens the tokenizer that comes first, and compiles what comes then."""

    _tokenizer: Any = None
    _end = 0

    def answer(self, given: bytes) -> Mapping[str, Any]:
        """The reply to a message."""
        try:
            if self._tokenizer is None:
                vocabulary = library.Vocabulary(**json.loads(given))
                self._tokenizer, self._end = vocabulary.open(), vocabulary.end
                return {}
            kind, text, lenient, within = json.loads(given)
            try:
                grammar = self._tried(kind, text, lenient, True)
            except UserError:  # joined objects may leave no answer once they are closed
                grammar = self._tried(kind, text, lenient, False)
            if within:  # text before the form puts it off, so that both are tried
                library.matcher_of(self._tokenizer, library.embedded(within, grammar))
            return {"grammar": grammar}
        except UserError as error:
            return {"message": error.message, "hint": error.hint}

    def _tried(self, kind: Kind, text: str, lenient: bool, closes: bool) -> str:
        grammar = library.grammar_of(kind, text, lenient, closes)
        library.walk(library.matcher_of(self._tokenizer, grammar), self._end)
        return grammar


if __name__ == "__main__":
    serve(Compiler().answer, OPENING_SECONDS)
