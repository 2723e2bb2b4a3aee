"""Chat templates have the tags, filters and globals of transformers; errors name their line."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate, environment

OURS = environment()
THEIRS: Any = chat_template_utils._compile_jinja_template("").environment
MESSAGES = [{"role": "user", "content": "é <&> ?"}, {"role": "assistant", "content": " fine "}]


def tags(of: Any) -> set[str]:
    return {tag for extension in of.extensions.values() for tag in extension.tags}


def signature(value: object) -> list[tuple[str, object, object]] | None:
    """Names, kinds and defaults of a function that is not jinja2's own."""
    if not callable(value) or str(getattr(value, "__module__", "")).startswith("jinja2"):
        return None
    try:
        found = inspect.signature(value)
    except ValueError:  # Python's own classes have none
        return None
    return [(one.name, one.kind, one.default) for one in found.parameters.values()]


@pytest.mark.parametrize("kind", ["filters", "tests", "globals"])
def test_names_and_signatures_are_those_of_transformers(kind: str) -> None:
    ours, theirs = getattr(OURS, kind), getattr(THEIRS, kind)
    assert set(ours) == set(theirs)
    for name in theirs:
        assert signature(ours[name]) == signature(theirs[name]), name


def test_tags_and_settings_are_those_of_transformers() -> None:
    assert tags(OURS) == tags(THEIRS)
    for name in (
        "trim_blocks",
        "lstrip_blocks",
        "keep_trailing_newline",
        "autoescape",
        "undefined",
    ):
        assert getattr(OURS, name) == getattr(THEIRS, name)
    assert type(OURS) is type(THEIRS)
    assert OURS.policies == THEIRS.policies


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{%- for m in messages %}\n {%- generation -%}\n x {{ m.role }}\n{% endgeneration %}|\n"
        "{% endfor %}",
        "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% set n = namespace(a=1) %}{% generation %}{% set n.a = 2 %}{% endgeneration %}{{ n.a }}",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
        "{{ messages | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=true) }}",
        "{{ messages[0] | tojson(true, 4) }}",
        "{{ strftime_now('%Y') }}{{ strftime_now(format='%Y') }}",
        "{{ dict(a=1, b='x') | tojson }}{{ dict.fromkeys(['a'], 0) | tojson }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}"
        "{% break %}{% endfor %}",
        "{{ messages | map(attribute='role') | join(',') | capitalize }}{{ bos_token }}",
        "{% set x = namespace(self=1) %}{{ x.self }}",
    ],
)
def test_templates_render_as_in_transformers(source: str) -> None:
    theirs = THEIRS.from_string(source).render(messages=MESSAGES, bos_token="<s>")
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, True) == theirs


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('not these') }}", "not these"),
        ("{{ raise_exception(message='not these') }}", "not these"),
        ("{% set x = namespace(_a=1) %}", "_a"),
        ("{{ messages.__class__.mro() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_what_transformers_refuses_is_refused(source: str, says: str) -> None:
    with pytest.raises(Exception, match=says if says != "_a" else "underscore"):
        THEIRS.from_string(source).render(messages=MESSAGES)
    with pytest.raises(UserError, match=says):
        ChatTemplate(source, {}).render(MESSAGES, True)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("ok\n\n{% for m in messages %}{% nothing %}", "line 3: Encountered unknown tag 'nothing'"),
        ("ok\n{{ messages | nothing }}", "line 2: No filter named 'nothing'"),
        ("{% generation %}\nx", "line 2: Unexpected end of template"),
        ("{{ messages }}\n{% break %}", "line 2: 'break' outside loop"),
    ],
)
def test_the_line_of_a_broken_template_is_named(source: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ChatTemplate(source, {}).require_sound()


def test_options_are_names_that_no_template_has_anyway() -> None:
    source = "{% generation %}{{ enable_thinking }}{{ dict(a=messages) }}{% endgeneration %}"
    special: Mapping[str, str] = {"bos_token": "<s>"}
    assert ChatTemplate(source, special).options == {"enable_thinking"}
