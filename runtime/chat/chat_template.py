"""Renders messages to a prompt's text by the checkpoint's chat template, as transformers does.

The Jinja environment has transformers' tags, filters and globals: templates are written for it, and
call its functions by the names of their parameters.

A template is a program of the checkpoint's author. jinja2's sandbox keeps it from files and from
Python, but not from looping, and no thread can be ended within `9 ** 999999999`. So it is rendered
in processes of its own, whose time and memory are bounded:

    python -m snapexport.runtime.chat.chat_template

is one. The first message is the template, and each further one the arguments of a rendering.

Needs jinja2. Knows no model and no tokenizer.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from snapexport.errors import UserError
from snapexport.runtime.chat import template_files
from snapexport.runtime.confined import Confined, Pool, serve


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
        """Do as Python's does."""
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


Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the special tokens that it may use. tool_use: in its place, with tools."""

    source: str
    special: Mapping[str, str]
    tool_use: "ChatTemplate | None" = None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        options: Mapping[str, Any] | None = None,
        is_complete: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt's text. Without a generation prompt the model is to continue the last message.

        options: values of names in `options`. is_complete: keep what follows the last message.
        """
        known: dict[str, object] = {"messages": messages, "tools": tools, "documents": None}
        known["add_generation_prompt"] = add_generation_prompt
        given = {**self.special, **(options or {}), **known}
        try:
            text = self._template.render(given)
        except Exception as error:  # what a template does with a value of the wrong type, too
            kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
            raise UserError(
                f"the chat template cannot be applied: {kind}{error}",
                "give the roles, and their order, that the checkpoint's template takes",
            ) from None
        if add_generation_prompt or is_complete:
            return text
        return _open(text, messages[-1].get("content") or "")

    def require_sound(self) -> None:
        """Raise UserError for a text that is not a template."""
        try:
            _ = self._template, self.options
            return
        except jinja2.TemplateSyntaxError as error:
            why = f"line {error.lineno}: {error.message}"
        except SyntaxError as error:  # of the Python that jinja2 makes, such as a stray `break`
            why = f"line {_line(self.source, error.lineno or 0)}: {error.msg}"
        except jinja2.TemplateError as error:
            why = str(error)
        raise UserError(
            f"the chat template cannot be read: {why}", f"{template_files.COPY} again"
        ) from None

    @cached_property
    def options(self) -> frozenset[str]:
        """Optional names that the template reads, such as `enable_thinking`."""
        return frozenset(
            self._names - template_files.GIVEN - self.special.keys() - environment().globals.keys()
        )

    @property
    def reads_tools(self) -> bool:
        """Whether it shows tools to the model."""
        return "tools" in self._names

    @cached_property
    def _names(self) -> set[str]:
        return meta.find_undeclared_variables(environment().parse(self.source))

    @cached_property
    def _template(self) -> jinja2.Template:
        return environment().from_string(self.source)


def load(directory: Path, config: Mapping[str, Any]) -> ChatTemplate:
    """The build's chat template; `config` is its tokenizer_config.json. Raises UserError."""
    source = template_files.read_source(directory, config)
    if source is None:
        raise UserError(f"{directory} has no chat template", template_files.COPY)
    special = template_files.special_tokens(config)
    tool_use = template_files.read_tool_use(directory, config)
    return ChatTemplate(source, special, ChatTemplate(tool_use, special) if tool_use else None)


def _line(source: str, line: int) -> int:
    """The template's line from which a line of Python was made, by jinja2's own record."""
    made = str(environment().compile(source, raw=True))
    pairs = re.findall(r"([0-9]+)=([0-9]+)", made.rpartition("debug_info = ")[2])
    return max((int(own) for own, other in pairs if int(other) <= line), default=1)


def _open(text: str, last: str) -> str:
    """Cut the prompt after the last message's text: closing tokens would end the answer."""
    at = text.rfind(last.strip())
    if at < 0:
        raise UserError(
            f"the chat template does not show the last message as it is: {last!r:.200}",
            "end with a message of the user's",
        )
    # Some templates keep the white space at its end, and then it is the model's to go on from.
    shown = last.lstrip() if text.startswith(last.lstrip(), at) else last.strip()
    return text[: at + len(shown)]


MOST_CHARACTERS = 1 << 24
"""Characters of a rendered text."""


class TemplateProcesses:
    """A `ChatTemplate` whose renderings are bounded. Any thread may render."""

    def __init__(self, template: ChatTemplate) -> None:
        """Start a process, which reads the template. Raises UserError for a broken one."""
        self.source = template.source
        self.tool_use: TemplateProcesses | None = None
        self._pool = Pool(partial(_process_of, template))
        with self._pool.worker() as worker:
            facts = worker.start()
        self.options, self.reads_tools = frozenset(facts["options"]), bool(facts["reads_tools"])
        if template.tool_use:
            self.tool_use = TemplateProcesses(template.tool_use)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        options: Mapping[str, Any] | None = None,
        is_complete: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt's text, as `ChatTemplate.render` makes it. Raises UserError."""
        reply = self._pool.ask([messages, add_generation_prompt, options, is_complete, tools])
        return str(reply["text"])

    def close(self) -> None:
        """End the processes, which must not render any more."""
        self._pool.close()
        if self.tool_use:
            self.tool_use.close()


def _process_of(template: ChatTemplate) -> Confined:
    return Confined(
        "snapexport.runtime.chat.chat_template",
        {"source": template.source, "special": dict(template.special)},
        "the chat template cannot be applied",
        "use a checkpoint whose chat template ends soon, or prompts without a template",
    )


class _Renderer:
    """Opens the template of the first message, and renders it for each further one."""

    _template: ChatTemplate | None = None

    def answer(self, given: bytes) -> Mapping[str, Any]:
        """The reply to a message."""
        try:
            if self._template is not None:
                return {"text": _render(self._template, *json.loads(given))}
            template = ChatTemplate(**json.loads(given))
            template.require_sound()
        except UserError as error:
            return {"message": error.message, "hint": error.hint}
        except Exception as error:  # such as a template nested too deeply
            message = f"the chat template cannot be used: {type(error).__name__}: {error}"
            return {"message": message, "hint": "copy it from the checkpoint again"}
        self._template = template
        return {"options": sorted(template.options), "reads_tools": template.reads_tools}


def _render(template: ChatTemplate, *given: Any) -> str:
    text = template.render(*given)
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the chat template makes {len(text)} characters of the messages",
            f"{MOST_CHARACTERS} are taken at the most",
        )
    return text


if __name__ == "__main__":
    serve(_Renderer().answer)
