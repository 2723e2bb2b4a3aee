"""The default window reaches over the tokens that a chat template writes after a question."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from snapexport.builder.options import BuildOptions
from snapexport.builder.texts import template_tail
from snapexport.contract.vote import DEFAULT_L_OBS
from snapexport.errors import UserError
from snapexport.vault import CHECKPOINT
from tests.measure.eval.test_systems import model

TOKENIZER = (CHECKPOINT / "tokenizer.json").read_bytes()
TAIL = " amber heron quiet"
TEMPLATE = "{{ messages[0].content }}{% if add_generation_prompt %}" + TAIL + "{% endif %}"


def test_the_tail_is_counted_in_tokens() -> None:
    wanted = len(Tokenizer.from_str(TOKENIZER.decode()).encode(TAIL, add_special_tokens=False).ids)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    in_config = {"tokenizer_config.json": json.dumps({"chat_template": named}).encode()}
    assert wanted >= 3
    for texts in ({"chat_template.jinja": TEMPLATE.encode()}, in_config):
        assert template_tail({"tokenizer.json": TOKENIZER, **texts}) == wanted


@pytest.mark.parametrize("template", ["{{ raise_exception('no user') }}", "a constant"])
def test_a_template_without_a_readable_tail_has_none(template: str) -> None:
    texts = {"tokenizer.json": TOKENIZER, "chat_template.jinja": template.encode()}
    assert template_tail(texts) == 0
    assert template_tail({"chat_template.jinja": TEMPLATE.encode()}) == 0
    assert template_tail({"tokenizer.json": TOKENIZER}) == 0


BROKEN = "ok\n{% for m in messages %}\n{% nothing %}"


@pytest.mark.parametrize(
    "texts",
    [
        {"chat_template.jinja": BROKEN},
        {"chat_template.jinja": TEMPLATE, "additional_chat_templates/tool_use.jinja": BROKEN},
        {"tokenizer_config.json": json.dumps({"chat_template": BROKEN})},
        {
            "tokenizer_config.json": json.dumps(
                {"chat_template": [{"name": "tool_use", "template": BROKEN}]}
            )
        },
    ],
    ids=["file", "file for tools", "config", "named in the config"],
)
@pytest.mark.parametrize(
    ("source", "hint"), [("m", "move it out"), ("m.gguf", "gguf-new-metadata")]
)
def test_a_template_that_nobody_can_read_is_refused_with_its_line(
    texts: dict[str, str], source: str, hint: str
) -> None:
    with pytest.raises(UserError, match="line 3: Encountered unknown tag 'nothing'") as error:
        template_tail({name: text.encode() for name, text in texts.items()}, Path(source))
    assert hint in error.value.hint


def window(tail: int, **choices: Any) -> int:
    options = BuildOptions.of(model="", out=Path(), L_max=1024, **choices)
    return options.geometry(model(), tail).vote.L_obs


def test_the_default_window_sees_the_end_of_the_question() -> None:
    assert window(0) == DEFAULT_L_OBS
    assert (window(6), window(12)) == (16, 22)
    assert window(12, L_obs=4) == 4
    assert window(12, kv_budget=24) == 13  # the ring
    assert window(12, prefill_chunk=16) == 16
