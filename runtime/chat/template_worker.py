"""Renders one chat template as a process of its own, whose processor time and memory are bounded.

    python -m snapexport.runtime.chat.template_worker

Its standard input is a socket. Messages are JSON: first the template, then the arguments of each
rendering. `template_process` is the other end.
"""

import json
import resource
import signal
from multiprocessing.connection import Connection
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate

CPU_SECONDS = 2.0
"""Processor time of one rendering. The kernel ends a process that takes more."""
MEMORY_BYTES = 1 << 30
MOST_CHARACTERS = 1 << 24
"""Characters of a rendered text."""


def main() -> None:
    """Answer until the other end closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server drains first
    connection, template = Connection(0), None
    while True:
        try:
            given = connection.recv_bytes()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        template, reply = _answer(template, given)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps(reply).encode())


def _answer(
    template: ChatTemplate | None, given: bytes
) -> tuple[ChatTemplate | None, dict[str, Any]]:
    """The template, once it is open, and the reply."""
    try:
        if template is not None:
            return template, {"text": _rendered(template, *json.loads(given))}
        template = ChatTemplate(**json.loads(given))
        template.require_sound()
        facts = {"options": sorted(template.options), "reads_tools": template.reads_tools}
        return template, facts
    except UserError as error:
        return template, {"message": error.message, "hint": error.hint}
    except Exception as error:  # such as a template nested too deeply
        message = f"the chat template cannot be used: {type(error).__name__}: {error}"
        return template, {"message": message, "hint": "copy it from the checkpoint again"}


def _rendered(template: ChatTemplate, *given: Any) -> str:
    text = template.render(*given)
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the chat template makes {len(text)} characters of the messages",
            f"{MOST_CHARACTERS} are taken at the most",
        )
    return text


if __name__ == "__main__":
    main()
