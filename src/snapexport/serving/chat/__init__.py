"""The checkpoint's own chat template, without transformers: messages to a prompt's text.

Needs jinja2. Knows no model and no server; what runs the prompt is the caller's affair.
"""

from snapexport.serving.chat.template import ChatTemplate, Message, load

__all__ = ["ChatTemplate", "Message", "load"]
