"""The Jinja environment in which chat templates are rendered: transformers' tags, filters, globals.

Templates are written for it, and call its functions by the names of their parameters. Needs jinja2.
Knows no conversation.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training. A prompt has its text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        """The block, which is a scope of its own: what is set in it does not leave it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """As Python's."""
        return dict.fromkeys(*args, **kwargs)


class PublicNamespace(Namespace):
    """`namespace(...)` without private names, which lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may name a value `self`
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _require_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template cannot have the name {name!r}")


def environment() -> ImmutableSandboxedEnvironment:
    """A new environment."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
    )
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _now,
        "dict": Dict(),
        "namespace": PublicNamespace,
    }
    return made


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
