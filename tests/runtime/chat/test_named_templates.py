"""Named chat templates: the one for tools is taken where transformers takes it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from snapexport.runtime.chat.chat_prompts import Chat, ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.chat.parsers.table import OutputFormat
from snapexport.runtime.chat.template_habits import sources
from tests.runtime.tokenizers_for_tests import byte_level

ASKED = [{"role": "user", "content": "é?"}]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[plain]"
USES = "{{ tools[0].function.name }}" + PLAIN.replace("plain", "<tool_call>")
FILE, TOOL_FILE = "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
LISTED = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": USES}]


def lay(directory: Path, listed: object, files: Mapping[str, str]) -> Path:
    byte_level().save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {"chat_template": listed} if listed else {}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize(
    ("listed", "files"),
    [
        (LISTED, {}),
        ([*LISTED, {"name": "rag", "template": "rag"}], {}),
        (LISTED, {FILE: "{{ tools }}of the file"}),
        (None, {FILE: PLAIN, TOOL_FILE: USES}),
        ([*LISTED[:1], {"name": "tool_use", "template": "old"}], {FILE: PLAIN, TOOL_FILE: USES}),
        ([*LISTED[:1], {"name": "rag", "template": "rag"}], {}),
        ("{{ tools }}one", {}),
    ],
    ids=["listed", "more", "a file overrules", "files", "files overrule", "no tool_use", "one"],
)
def test_prompts_are_those_of_transformers(
    tmp_path: Path, listed: object, files: dict[str, str]
) -> None:
    directory = lay(tmp_path, listed, files)
    theirs = PreTrainedTokenizerFast.from_pretrained(directory)
    ours = ChatPrompts.open(directory, byte_level())
    plain = theirs.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert ours.text(Chat(ASKED)) == plain
    if ours.template.tool_use or ours.template.reads_tools:
        wanted = theirs.apply_chat_template(
            ASKED, tools=TOOLS, tokenize=False, add_generation_prompt=True
        )
        assert ours.text(Chat(ASKED, tools=TOOLS)) == wanted != plain


def test_format_of_calls_is_found_in_the_template_for_tools() -> None:
    template = ChatTemplate(PLAIN, {}, ChatTemplate(USES, {}))
    tools = OutputFormat.of(sources(template)).tools
    assert tools and tools.name == "hermes"
