"""Puts a task into the checkpoint's chat template, as an instruct model is asked.

Knows no model.
"""

from collections.abc import Callable
from dataclasses import replace

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.eval.sample import Frame, Text, as_it_is
from snapexport.runtime.chat import template_files
from snapexport.runtime.chat.chat_prompts import ChatPrompts


def frame_of(build: Build, wanted: bool | None) -> Frame:
    """The build's chat form; `as_it_is` where it has no template, or where none is wanted.

    wanted: None for a build's own template if it has one. Raises UserError where it is missing.
    """
    if wanted is False or (wanted is None and not template_files.has_template(build.directory)):
        return as_it_is
    chat = ChatPrompts.open(build.directory)

    def render(user: str) -> str:
        return chat.template.render([{"role": "user", "content": user}], True)

    return lambda text: in_chat(text, render)


def in_chat(text: Text, render: Callable[[str], str]) -> Text:
    """The text as one message of the user's. The template's own tokens end the question.

    The last line of a question of several lines begins the answer: the model has to write it. Many
    templates strip a message, and a document may begin with spaces.
    """
    question, newline, beginning = text.question.rpartition("\n")
    if not newline:
        question, beginning = beginning, ""
    rendered = render(text.context + question)
    shown = text.context if text.context in rendered else text.context.lstrip()
    if shown not in rendered:
        raise UserError("the chat template does not show a message as it is", "use --no-chat")
    end = rendered.index(shown) + len(shown)
    return replace(
        text,
        context=rendered[:end],
        question=rendered[end:],
        reference=(beginning + text.reference).lstrip(),
        in_chat=True,
    )
