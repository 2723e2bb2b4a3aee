"""The syntax of calls in JSON: Hermes and Qwen, Granite, Llama 3, Mistral and DeepSeek."""

import re
from collections.abc import Callable

from snapexport.runtime.chat.parsers.json_reader import JsonReader
from snapexport.runtime.chat.parsers.parser import Tools
from snapexport.runtime.chat.parsers.tool_parser import Reader, ToolSyntax


def _after(header: str) -> Callable[[Tools], Reader]:
    pattern = re.compile(header)
    return lambda tools: JsonReader(pattern, tools)


def _of_these_tools(header: str) -> Callable[[Tools], Reader]:
    pattern = re.compile(header)
    return lambda tools: JsonReader(pattern, tools, knows_all=True)


HERMES = ToolSyntax(("<tool_call>",), _after(r"<tool_call>\s*(?=[\[{])"), closers=("</tool_call>",))
GRANITE = ToolSyntax(
    ("<|tool_call|>", "<tool_call>"),
    _after(r"<\|?tool_call\|?>\s*(?=[\[{])"),
    closers=("</tool_call>", "<|end_of_text|>"),
)
BARE = ToolSyntax((), _after(r"\s*(?=\{)"), bare="{")
"""A call and nothing else, as a grammar forces it."""
LLAMA3 = ToolSyntax(
    ("<|python_tag|>", '{"name"', '{"type"'),
    _of_these_tools(r"(?:<\|python_tag\|>)?\s*(?=\{)"),
    closers=(";", "<|eom_id|>"),
    bare="{",
)
"""A JSON object may be an answer, so only calls of known tools are calls."""
MISTRAL = ToolSyntax(
    ("[TOOL_CALLS]",),
    _after(
        r"\[TOOL_CALLS\]\s*(?:(?=\[\s*\{|\{)"
        r"|(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{))"
    ),
    within=("[ARGS]", "[CALL_ID]"),
)
DEEPSEEK = ToolSyntax(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    _after(
        r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?"
        r"(?P<name>[^\s<{`]+)(?:<｜tool▁sep｜>|\s*```json)?\s*(?=\{)"
    ),
    closers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    within=("<｜tool▁sep｜>",),
)
