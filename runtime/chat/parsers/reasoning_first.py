"""Grammars that let a model reason before an answer that has a prescribed form.

In llguidance's Lark, for `StructuredOutputs.within`.
"""

import re
from collections.abc import Mapping

from snapexport.runtime.chat.parsers.forced import ranges, written
from snapexport.runtime.chat.parsers.thinking import ThinkSyntax


def reasoning_first(syntax: ThinkSyntax, is_open: bool, added: Mapping[str, int]) -> str:
    """The grammar of reasoning and then the form.

    is_open: the prompt has opened the reasoning; otherwise an answer may also begin with its form.
    added: the tokenizer's added tokens by their texts. The end of reasoning may be one, or spelled.
    """
    begins = "" if is_open else f"@form | {written(syntax.opens, added)} "
    closing = {number for text, number in added.items() if text in syntax.closes}
    others = set(added.values()) - closing
    tokens = f"(TEXT? <[{ranges(others)}]>)* " if others else ""
    ends = f"(spelled | TEXT? {written(syntax.closes, added)})" if closing else "spelled"
    closes = re.escape(syntax.closes).replace("/", r"\/")
    return rf"""start: {begins}think GAP? @form
think: {tokens}{ends}
spelled[lazy]: /(?s:.*){closes}/
TEXT: /(?s:.+)/ & ~/(?s:.*){closes}(?s:.*)/
GAP: /[ \n]{{1,2}}/
"""
