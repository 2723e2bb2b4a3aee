"""The format of a model's answers is chosen by its chat template, or by name."""

import pytest

from snapexport.errors import UserError
from snapexport.runtime.chat.parsers.table import (
    HARMONY,
    REASONING_FORMATS,
    TOOL_FORMATS,
    OutputFormat,
)


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ '<tool_call>' }}<think>", "hermes", "think"),
        ("<tool_call>\n<function=f>", "qwen3_coder", None),
        ("<|channel|>analysis", HARMONY, HARMONY),
        ("plain", "generic", None),
    ],
)
def test_formats_are_chosen_by_the_templates_text(
    template: str, tools: str | None, reasoning: str | None
) -> None:
    chosen = OutputFormat.of(template)
    assert (chosen.tools and chosen.tools.name) == tools
    assert (chosen.reasoning and chosen.reasoning.name) == reasoning
    assert OutputFormat.of(template, "none", "none") == OutputFormat()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UserError, match="--tool-parser nope is not known") as refused:
        OutputFormat.of("", "nope")
    assert "hermes" in refused.value.hint


def test_every_reasoning_format_has_a_mark() -> None:
    assert all(row.marks for row in (*REASONING_FORMATS, *TOOL_FORMATS))
