"""Answers GET / with the page: one document, which may load nothing and ask this server only.

Its content security policy names the script and the style by their hashes, so that nothing else
runs, whatever a model writes.
"""

import base64
import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from snapexport.serving.openai.http.access import PAGE

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_route() -> Route:
    """The route of the page, which is read once."""
    parts = {"style": _part("page.css"), "script": _part("kept.js") + _part("page.js")}
    text = _part("page.html")
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    headers = {
        "Content-Security-Policy": _POLICY.format_map({n: _hash(p) for n, p in parts.items()}),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }

    async def answer(_: Request) -> Response:
        return Response(text, media_type="text/html", headers=headers)

    return Route(PAGE, answer)


def _part(name: str) -> str:
    return (files("snapexport.serving.page") / name).read_text("utf-8")


def _hash(text: str) -> str:
    """The hash of an element's text, as a policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
