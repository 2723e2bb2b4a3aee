"""Lists the formats of models' outputs, and chooses one by a chat template's text."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from snapexport.errors import UserError
from snapexport.runtime.chat.parsers import json_calls, literal_calls, reasoning, xml_calls
from snapexport.runtime.chat.parsers.answer_grammars import (
    Wrap,
    calls_grammar,
    form_or,
    free_calls,
    reasoning_first,
)
from snapexport.runtime.chat.parsers.parser import Chained, OutputParser, Plain, Tools
from snapexport.runtime.chat.parsers.reasoning import MARKS, Harmony, ThinkParser, ThinkSyntax
from snapexport.runtime.chat.parsers.tool_parser import (
    ToolParser,
    ToolSyntax,
    call_id,
    short_call_id,
)

AUTO, NONE, HARMONY = "auto", "none", "harmony"


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes tool calls.

    marks: texts of which its chat templates have one. texts: the parser needs, which may be special
    tokens. wrap: of a call that is forced; None: a call is forced as a bare JSON object. starts:
    texts that begin a call.
    """

    name: str
    marks: Sequence[str]
    texts: Sequence[str]
    make: Callable[[Tools], OutputParser]
    new_id: Callable[[], str] = call_id
    wrap: Wrap | None = None
    starts: Sequence[str] = ()


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family writes its reasoning. make: takes the prompt. syntax: where it comes before the
    answer; None elsewhere.
    """

    name: str
    marks: Sequence[str]
    texts: Sequence[str]
    make: Callable[[str], OutputParser]
    syntax: ThinkSyntax | None = None


def _tools(
    name: str,
    syntax: ToolSyntax,
    *marks: str,
    new_id: Callable[[], str] = call_id,
    wrap: Wrap | None = None,
) -> ToolFormat:
    texts = (*syntax.starts, *syntax.closers, *syntax.within)
    parser = partial(ToolParser, syntax, other=json_calls.KNOWN)
    return ToolFormat(name, marks, texts, parser, new_id, wrap, syntax.starts)


def _thinks(name: str, syntax: ThinkSyntax, *marks: str) -> ReasoningFormat:
    texts = (syntax.opens, syntax.closes)
    return ReasoningFormat(name, marks, texts, partial(ThinkParser, syntax), syntax)


_TAGGED = Wrap('<tool_call>\n{"name": "', after="}\n</tool_call>", separator="\n")
_PARAMETERS = Wrap(between='", "parameters": ')
_LISTED = Wrap(separator=", ", opens="[TOOL_CALLS] [", closes="]")
_BEHIND_A_TOKEN = Wrap(separator=", ", opens="<|tool_call|>[", closes="]")
_MARKED = Wrap(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    separator="\n",
    opens="<｜tool▁calls▁begin｜>",
    closes="<｜tool▁calls▁end｜>",
)

TOOL_FORMATS = (
    ToolFormat(HARMONY, ("<|channel|>",), MARKS, Harmony),
    _tools(
        "deepseek_v3",
        json_calls.DEEPSEEK,
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜>",
        wrap=_MARKED,
    ),
    _tools("mistral", json_calls.MISTRAL, "[TOOL_CALLS]", new_id=short_call_id, wrap=_LISTED),
    _tools("functiongemma", literal_calls.FUNCTION_GEMMA, "<start_function_call>"),
    _tools("gemma4", literal_calls.GEMMA4, "<|tool_call>"),
    _tools("granite", json_calls.GRANITE, "<|tool_call|>", wrap=_BEHIND_A_TOKEN),
    _tools("qwen3_coder", xml_calls.QWEN3_CODER, "<function="),
    _tools("hermes", json_calls.HERMES, "<tool_call>", wrap=_TAGGED),
    _tools("pythonic", literal_calls.PYTHONIC, literal_calls.PYTHON_START),
    _tools(
        "llama3_json", json_calls.LLAMA3, "<|python_tag|>", "Environment: ipython", wrap=_PARAMETERS
    ),
    _tools("generic", json_calls.GENERIC, "", wrap=Wrap(separator="\n")),
)
"""The first whose mark a template has is chosen. Names are vLLM's where it has the format."""

REASONING_FORMATS = (
    ReasoningFormat(HARMONY, ("<|channel|>",), MARKS, lambda prompt: Harmony({})),
    _thinks("gemma4", reasoning.GEMMA4, "<|channel>"),
    _thinks("think", reasoning.THINK, "<think>", "</think>"),
    _thinks("granite", reasoning.GRANITE, reasoning.GRANITE.opens),
)

TOOL_PARSERS = (AUTO, NONE, *(row.name for row in TOOL_FORMATS))
REASONING_PARSERS = (AUTO, NONE, *(row.name for row in REASONING_FORMATS))


@dataclass(frozen=True)
class OutputFormat:
    """How one model writes calls and reasoning; None: as text, which nothing reads."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of(cls, template: str, tools: str = AUTO, reasoning: str = AUTO) -> "OutputFormat":
        """The formats by name, or by the template's text. Raises UserError for another name."""
        calls = _row_of("--tool-parser", tools, TOOL_FORMATS, template)
        thinks = _row_of("--reasoning-parser", reasoning, REASONING_FORMATS, template)
        return cls(calls, thinks)

    def needs(self, special: Iterable[str], with_tools: bool) -> bool:
        """Whether one of these special tokens has to be seen in an answer's text."""
        rows = (self.tools if with_tools else None, self.reasoning)
        texts = [text for row in rows if row for text in row.texts]
        return any(token in text for token in special for text in texts)

    def grammar(
        self, tools: Tools, strict: Collection[str], added: Mapping[str, int], several: bool = False
    ) -> str:
        """The grammar that makes an answer calls of these tools, by `calls_grammar`."""
        wrap = self.tools.wrap if self.tools else None
        return calls_grammar(wrap or Wrap(), tools, strict, added, several)

    def or_calls(
        self, outer: str, tools: Tools, strict: Collection[str], added: Mapping[str, int]
    ) -> str:
        """The grammar around a form that lets an answer be calls instead, by `form_or`.

        It is `outer` itself where a call may begin as a form does: in bare JSON.
        """
        row = self.tools
        if row is None or not (row.wrap or row.starts):
            return outer
        if row.wrap is None:
            return form_or(free_calls(row.starts, added), outer)
        if (row.wrap.opens + row.wrap.before).startswith("{"):
            return outer
        return form_or(calls_grammar(row.wrap, tools, strict, added, several=True), outer)

    def before_form(self, prompt: str, may_begin: bool, added: Mapping[str, int]) -> str:
        """The grammar that lets an answer reason before its form; empty: the form begins at once.

        may_begin: whether the model may open its reasoning itself.
        """
        syntax = self.reasoning.syntax if self.reasoning else None
        if syntax is None:
            return ""
        is_open, is_over = (
            prompt.rstrip().endswith(mark) for mark in (syntax.opens, syntax.closes)
        )
        if not is_open and (is_over or not may_begin):
            return ""
        return reasoning_first(syntax, is_open, added)

    def forced_parser(self, tools: Tools, prompt: str | None) -> OutputParser:
        """A parser of an answer that this grammar made. prompt: None if it has no reasoning."""
        known = self.tools if self.tools and self.tools.wrap else None
        call = known.make(tools) if known else ToolParser(json_calls.BARE, tools)
        if prompt is None or self.reasoning is None:
            return call
        return Chained(self.reasoning.make(prompt), call)

    def parser(self, tools: Tools, prompt: str) -> OutputParser:
        """A parser of one answer to the prompt. Without tools no text is a call."""
        calls = self.tools if tools else None
        if any(row is not None and row.name == HARMONY for row in (calls, self.reasoning)):
            return Harmony(tools)
        thinks = self.reasoning.make(prompt) if self.reasoning else None
        reads = calls.make(tools) if calls else Plain()
        return Chained(thinks, reads) if thinks else reads

    @property
    def new_call_id(self) -> Callable[[], str]:
        """Makes the ids of calls, as the family's templates want them."""
        return self.tools.new_id if self.tools else call_id


@dataclass(frozen=True)
class Reading:
    """How a request's answers are read. parallel: whether an answer may have several calls."""

    parser: Callable[[], OutputParser] = Plain
    new_id: Callable[[], str] = call_id
    parallel: bool = True


Row = TypeVar("Row", ToolFormat, ReasoningFormat)


def _row_of(flag: str, name: str, rows: Iterable[Row], template: str) -> Row | None:
    if name == NONE:
        return None
    known: dict[str, Row] = {row.name: row for row in rows}
    if name in known:
        return known[name]
    if name != AUTO:
        raise UserError(f"{flag} {name} is not known", f"use {', '.join((AUTO, NONE, *known))}")
    fits = (row for row in known.values() if any(mark in template for mark in row.marks))
    return next(fits, None)
