"""Reads calls in Python's syntax, as Llama 4 writes them: [f(a=1), g()]."""

import ast
from collections.abc import Sequence

from snapexport.runtime.chat.parsers.calls import call_of
from snapexport.runtime.chat.parsers.parser import Call, Tools
from snapexport.runtime.chat.parsers.tool_parser import Found, ToolSyntax

START, END = "<|python_start|>", "<|python_end|>"
MOST_CHARACTERS = 1 << 16


class PythonReader:
    """A list of calls of known tools, up to the end mark or the end of the answer."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._searched = tools, 0

    def read(self, text: str) -> Found | None:
        """The calls up to the end mark."""
        if len(text) > MOST_CHARACTERS:
            return Found(1)
        at = text.find(END, max(0, self._searched - len(END)))
        self._searched = len(text)
        return None if at < 0 else Found(at + len(END), self.finish(text[:at]))

    def finish(self, text: str) -> Sequence[Call]:
        """The calls, if the whole text is a list of them."""
        try:
            tree = ast.parse(text.removeprefix(START).strip(), mode="eval").body
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


PYTHONIC = ToolSyntax((START,), PythonReader, closers=(END,), bare="[")
