"""Grammars that make an answer one tool call, in the words of a family.

In llguidance's Lark. Special tokens of a family are spelled out as text, which its parser reads.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.runtime.chat.parsers.parser import Tools

NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_SPACES = r"[ \t]{1,2}|\r?\n[ \t]{0,40}"
"""Between JSON's tokens. Without a bound a model may write spaces to the end."""


@dataclass(frozen=True)
class Wrap:
    """What a call has around its name and its arguments."""

    before: str = '{"name": "'
    between: str = '", "arguments": '
    after: str = "}"


def call_grammar(wrap: Wrap, tools: Tools, strict: Collection[str]) -> str:
    """The grammar of one call of any of the tools. strict: refuse what can't be enforced."""
    rules = [f"start: {' | '.join(f'call{index}' for index in range(len(tools)))}"]
    for index, (name, schema) in enumerate(tools.items()):
        options: dict[str, Any] = {"whitespace_pattern": _SPACES}
        if name not in strict:
            options |= {"lenient": True, "coerce_one_of": True}
        arguments = {"type": "object", **(schema or NO_PARAMETERS), "x-guidance": options}
        before = _quoted(f"{wrap.before}{name}{wrap.between}")
        rules.append(f"call{index}: {before} arguments{index} {_quoted(wrap.after)}")
        rules.append(f"arguments{index}: %json {json.dumps(arguments)}")
    return "\n".join(rules)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
