"""Grammars that make an answer one tool call, in the words of a family.

In llguidance's Lark, where an added token, such as <tool_call>, is not the text that it shows.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.runtime.chat.parsers.parser import Tools
from snapexport.runtime.requests.grammars.closed_objects import closed

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


def call_grammar(
    wrap: Wrap, tools: Tools, strict: Collection[str], added: Mapping[str, int]
) -> str:
    """The grammar of one call of any of the tools.

    strict: refuse what can't be enforced. added: the tokenizer's added tokens by their texts.
    """
    rules = [f"start: {' | '.join(f'call{index}' for index in range(len(tools)))}"]
    for index, (name, schema) in enumerate(tools.items()):
        options: dict[str, Any] = {"whitespace_pattern": _SPACES}
        if name not in strict:
            options |= {"lenient": True, "coerce_one_of": True}
        known = closed({"type": "object", **(schema or NO_PARAMETERS)})
        arguments = known | {"x-guidance": options}
        before = written(f"{wrap.before}{name}{wrap.between}", added)
        after = written(wrap.after, added)
        rules.append(f"call{index}: {before} arguments{index} {after}")
        rules.append(f"arguments{index}: %json {json.dumps(arguments)}")
    return "\n".join(rules)


def written(text: str, added: Mapping[str, int]) -> str:
    """The text as a rule, added tokens by their numbers."""
    inside = sorted((token for token in added if token in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, inside))})", text) if inside else [text]
    return " ".join(
        f"<[{added[part]}]>" if part in added else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )
