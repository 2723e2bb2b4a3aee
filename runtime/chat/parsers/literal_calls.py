"""Reads calls that are neither JSON nor tags: FunctionGemma's and Gemma 4's, and Llama 4's.

Gemma writes call:NAME{key:value} with texts between marks, Llama 4 Python: [f(a=1), g()].
"""

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from snapexport.runtime.chat.parsers.parser import Call, Tools, call_of, load_json
from snapexport.runtime.chat.parsers.tool_parser import Found, Reader, ToolSyntax

_HEAD = re.compile(r"\s*call:\s*([\w.-]{1,256})\s*(?=\{)")
MOST_DEPTH = 32


class GemmaReader:
    """One call, up to its end mark."""

    def __init__(self, start: str, end: str, quote: str) -> None:
        self._start, self._end, self._quote = start, end, quote
        self._searched = 0

    def read(self, text: str) -> Found | None:
        """The call up to its end."""
        at = text.find(self._end, max(0, self._searched - len(self._end)))
        self._searched = len(text)
        return None if at < 0 else Found(at + len(self._end), self._calls(text[:at]))

    def finish(self, text: str) -> Sequence[Call]:
        """The call, whose end mark may be a token that ends the answer."""
        return self._calls(text)

    def _calls(self, text: str) -> Sequence[Call]:
        body = text.removeprefix(self._start)
        head = _HEAD.match(body)
        if head is None:
            return ()
        values = _Values(body, head.end(), self._quote)
        try:
            call = call_of(head[1], values.value())
        except ValueError:
            return ()
        return () if call is None or body[values.at :].strip() else (call,)


class _Values:
    """Reads values from a place on. Raises ValueError for what is none."""

    def __init__(self, text: str, at: int, quote: str) -> None:
        self._text, self.at, self._quote = text, at, quote
        self._depth = 0
        mark = re.escape(quote)
        plain = rf"(?:(?!{mark})[^{{}}\[\],:])+"
        self._token = re.compile(rf"\s*(?:{mark}(.*?){mark}|([{{}}\[\],:])|({plain}))", re.S)

    def value(self) -> Any:
        """The next value."""
        quoted, sign, plain = self._next()
        if sign in ("{", "["):
            self._depth += 1
            if self._depth > MOST_DEPTH:
                raise ValueError("too many levels")
            inside = self._object() if sign == "{" else self._list()
            self._depth -= 1
            return inside
        if sign:
            raise ValueError(f"{sign} is not a value")
        return quoted if plain is None else _plain(plain.strip())

    def _object(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while not self._ends("}"):
            quoted, sign, plain = self._next()
            if sign or self._next()[1] != ":":
                raise ValueError("a key is missing")
            made[quoted if plain is None else plain.strip()] = self.value()
        return made

    def _list(self) -> list[Any]:
        made = []
        while not self._ends("]"):
            made.append(self.value())
        return made

    def _ends(self, sign: str) -> bool:
        """Whether the bracket closes here; a comma before the next entry is passed."""
        at = self.at
        found = self._next()[1]
        if found not in (sign, ","):
            self.at = at
        return found == sign

    def _next(self) -> tuple[str, str | None, str | None]:
        match = self._token.match(self._text, self.at)
        if match is None:
            raise ValueError("the text ends within a value")
        self.at = match.end()
        return match[1] or "", match[2], match[3]


def _plain(text: str) -> Any:
    value = load_json(text)
    return text if value is None and text != "null" else value


def _gemma_syntax(start: str, end: str, quote: str) -> ToolSyntax:
    reader: Callable[[Tools], Reader] = lambda tools: GemmaReader(start, end, quote)  # noqa: E731
    return ToolSyntax((start,), reader, within=(end, quote))


FUNCTION_GEMMA = _gemma_syntax("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = _gemma_syntax("<|tool_call>", "<tool_call|>", '<|"|>')


PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
MOST_CHARACTERS = 1 << 16


class PythonReader:
    """A list of calls of known tools, up to the end mark or the end of the answer."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._searched = tools, 0

    def read(self, text: str) -> Found | None:
        """The calls up to the end mark."""
        if len(text) > MOST_CHARACTERS:
            return Found(1)
        at = text.find(PYTHON_END, max(0, self._searched - len(PYTHON_END)))
        self._searched = len(text)
        return None if at < 0 else Found(at + len(PYTHON_END), self.finish(text[:at]))

    def finish(self, text: str) -> Sequence[Call]:
        """The calls, if the whole text is a list of them."""
        try:
            tree = ast.parse(text.removeprefix(PYTHON_START).strip(), mode="eval").body
            entries = tree.elts if isinstance(tree, ast.List) else [tree]
            calls = [self._call(entry) for entry in entries]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return ()
        known = [call for call in calls if call]
        return known if len(known) == len(calls) else ()

    def _call(self, node: ast.expr) -> Call | None:
        if not isinstance(node, ast.Call) or node.args:
            return None
        name = ast.unparse(node.func)
        arguments = {key.arg: ast.literal_eval(key.value) for key in node.keywords}
        return None if name not in self._tools or None in arguments else call_of(name, arguments)


PYTHONIC = ToolSyntax((PYTHON_START,), PythonReader, closers=(PYTHON_END,), bare="[")
