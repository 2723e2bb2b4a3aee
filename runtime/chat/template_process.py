"""Renders a chat template in processes of its own, whose time and memory are bounded.

A template is a program of whoever made the checkpoint. jinja2's sandbox keeps it from files and
from Python, but not from looping, and no thread can be ended amid `9 ** 999999999`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from snapexport.runtime.chat.chat_template import ChatTemplate, Message
from snapexport.runtime.confined import Confined, Pool


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
        "snapexport.runtime.chat.template_worker",
        {"source": template.source, "special": dict(template.special)},
        "the chat template cannot be applied",
        "use a checkpoint whose chat template ends soon, or prompts without a template",
    )
