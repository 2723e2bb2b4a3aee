"""Renders one chat template as a process of its own, whose processor time and memory are bounded.

    python -m snapexport.runtime.chat.template_worker

Reads JSON lines: first the template, then what to render. Answers each with one JSON line, and ends
with its input. `template_process` is the other end.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate

CPU_SECONDS = 2.0
"""Processor time of one rendering. The kernel ends a process that takes more."""
MEMORY_BYTES = 1 << 30
MOST_CHARACTERS = 1 << 24
"""Characters of a rendered text."""

Reply = Mapping[str, Any]


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server drains first
    template: ChatTemplate | None = None
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            given = json.loads(line)
            if template is None:
                template = ChatTemplate(**given)
                reply = _opened(template)
            else:
                reply = _rendered(template, given)
        except UserError as error:
            reply = {"message": error.message, "hint": error.hint}
        except Exception as error:  # such as a template nested too deeply
            kind = type(error).__name__
            message = f"the chat template cannot be used: {kind}: {error}"
            reply = {"message": message, "hint": "copy it from the checkpoint again"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _opened(template: ChatTemplate) -> Reply:
    template.require_sound()
    return {"options": sorted(template.options)}


def _rendered(template: ChatTemplate, given: Mapping[str, Any]) -> Reply:
    text = template.render(**given)
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the chat template makes {len(text)} characters of the messages",
            f"{MOST_CHARACTERS} are taken at the most",
        )
    return {"text": text}


if __name__ == "__main__":
    main()
