"""Makes the grammars of forced tool calls, in a family's words, and of reasoning before a form.

In llguidance's Lark, where an added token, such as <tool_call>, is not the text that it shows.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.parsers.parser import Tools
from snapexport.runtime.chat.parsers.reasoning import ThinkSyntax
from snapexport.runtime.requests.grammars.schemas import acceptable, close_objects

NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_SPACES = r"[ \t]{1,2}|\r?\n[ \t]{0,40}"
"""Between JSON's tokens. Without a bound a model may write spaces to the end."""


MOST_CALLS = 16
"""Of one answer. Small models repeat a call for as long as they may."""


@dataclass(frozen=True)
class Wrap:
    """The texts around a call's name and its arguments.

    separator: between calls; None: a family has no form for several. opens, closes: around all.
    """

    before: str = '{"name": "'
    between: str = '", "arguments": '
    after: str = "}"
    separator: str | None = None
    opens: str = ""
    closes: str = ""


def calls_grammar(
    wrap: Wrap, tools: Tools, strict: Collection[str], added: Mapping[str, int], several: bool
) -> str:
    """The grammar of one call of any of the tools, or of several if the family has a form for it.

    strict: refuse what can't be enforced. added: the tokenizer's added tokens by their texts.
    Raises UserError.
    """
    more = ""
    if several and wrap.separator is not None:
        separator = rule_of(wrap.separator, added)
        more = f"({separator} call){{0,{MOST_CALLS - 1}}}"
        if wrap.separator.isspace():  # after which a model may see that it has no more to call
            more += f" {separator}?"
    rules = [
        f"start: {rule_of(wrap.opens, added)} call {more} {rule_of(wrap.closes, added)}",
        f"call: {' | '.join(f'call{index}' for index in range(len(tools)))}",
    ]
    for index, (name, schema) in enumerate(tools.items()):
        options: dict[str, Any] = {"whitespace_pattern": _SPACES}
        if name not in strict:
            options |= {"lenient": True, "coerce_one_of": True}
        whole = close_objects(_of_object(name, schema))
        try:
            known = acceptable(whole, name not in strict)
        except UserError as error:
            raise UserError(f"{_of(name)}: {error.message}", error.hint) from None
        arguments = known | {"x-guidance": options}
        before = rule_of(f"{wrap.before}{name}{wrap.between}", added)
        after = rule_of(wrap.after, added)
        rules.append(f"call{index}: {before} arguments{index} {after}")
        rules.append(f"arguments{index}: %json {json.dumps(arguments)} // {_of(name)}")
    return "\n".join(rules)


def _of_object(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of arguments. Raises UserError for one that no object matches."""
    known = schema or NO_PARAMETERS
    kind = known.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise UserError(f"{_of(name)} must be an object", 'say "type": "object" in their schema')
    return {**known, "type": "object"}


def _of(name: str) -> str:
    return f"parameters of {json.dumps(name)}"


def free_calls(starts: Sequence[str], added: Mapping[str, int]) -> str:
    """The grammar of anything that begins with one of these texts, of formats without a `Wrap`."""
    begins = " | ".join(rule_of(start, added) for start in starts)
    tokens = f"(REST? <[{ranges(added.values())}]>)* " if added else ""
    return f"start: ({begins}) {tokens}REST?\nREST: /(?s:.+)/"


def form_or(calls: str, outer: str) -> str:
    """A grammar for `StructuredOutputs.within`: calls may be in place of the form.

    outer: a grammar of what comes before the form; empty: nothing does.
    """
    beside = (outer or "start: @form").replace("@form", "(@form | calls)")
    return f"{beside.rstrip()}\n{calls.replace('start:', 'calls:', 1)}\n"


def ranges(numbers: Iterable[int]) -> str:
    """The numbers as llguidance writes them: 1-3,7."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in found)


def rule_of(text: str, added: Mapping[str, int]) -> str:
    """The text as a rule, added tokens by their numbers."""
    inside = sorted((token for token in added if token in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, inside))})", text) if inside else [text]
    return " ".join(
        f"<[{added[part]}]>" if part in added else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )


def reasoning_first(syntax: ThinkSyntax, is_open: bool, added: Mapping[str, int]) -> str:
    """The grammar of reasoning and then the form.

    is_open: the prompt has opened the reasoning; otherwise an answer may also begin with its form.
    added: the tokenizer's added tokens by their texts. The end of reasoning may be one, or spelled.
    """
    begins = "" if is_open else f"@form | {rule_of(syntax.opens, added)} "
    closing = {number for text, number in added.items() if text in syntax.closes}
    others = set(added.values()) - closing
    tokens = f"(TEXT? <[{ranges(others)}]>)* " if others else ""
    ends = f"(spelled | TEXT? {rule_of(syntax.closes, added)})" if closing else "spelled"
    closes = re.escape(syntax.closes).replace("/", r"\/")
    return rf"""start: {begins}think GAP? @form
think: {tokens}{ends}
spelled[lazy]: /(?s:.*){closes}/
TEXT: /(?s:.+)/ & ~/(?s:.*){closes}(?s:.*)/
GAP: /[ \n]{{1,2}}/
"""
