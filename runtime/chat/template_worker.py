"""Renders one chat template as a process of its own, whose processor time and memory are bounded.

    python -m snapexport.runtime.chat.template_worker

Its standard input is a socket. Messages are JSON: first the template, then the arguments of each
rendering. `template_process` is the other end.
"""

import json
from collections.abc import Mapping
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.confined_worker import serve

MOST_CHARACTERS = 1 << 24
"""Characters of a rendered text."""


class Renderer:
    """Opens the template that comes first, and renders it with what comes then."""

    _template: ChatTemplate | None = None

    def answer(self, given: bytes) -> Mapping[str, Any]:
        """The reply to a message."""
        try:
            if self._template is not None:
                return {"text": _rendered(self._template, *json.loads(given))}
            template = ChatTemplate(**json.loads(given))
            template.require_sound()
        except UserError as error:
            return {"message": error.message, "hint": error.hint}
        except Exception as error:  # such as a template nested too deeply
            message = f"the chat template cannot be used: {type(error).__name__}: {error}"
            return {"message": message, "hint": "copy it from the checkpoint again"}
        self._template = template
        return {"options": sorted(template.options), "reads_tools": template.reads_tools}


def _rendered(template: ChatTemplate, *given: Any) -> str:
    text = template.render(*given)
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the chat template makes {len(text)} characters of the messages",
            f"{MOST_CHARACTERS} are taken at the most",
        )
    return text


if __name__ == "__main__":
    serve(Renderer().answer)
