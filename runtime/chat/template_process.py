"""Renders a chat template in processes of its own, whose time and memory are bounded.

A template is a program of the checkpoint's author. jinja2's sandbox keeps it from files and
from Python, but not from looping, and no thread can be ended within `9 ** 999999999`.

    python -m snapexport.runtime.chat.template_process

is the worker. The first message is the template, and each further one the arguments of a rendering.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate, Message
from snapexport.runtime.confined import Confined, Pool, serve

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
        "snapexport.runtime.chat.template_process",
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
